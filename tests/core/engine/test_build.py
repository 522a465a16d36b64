"""An engine is built from a config alone, with the same plan whether requests come in here or elsewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchgear import LLM
from switchgear.core.config import Config, build_config
from switchgear.core.engine.build import build, build_engine, find
from switchgear.core.errors import ConfigError, ModelError
from switchgear.core.hooks import hookimpl
from switchgear.core.sampling_params import SamplingParams

from ..made_plugins import plugin


def config_of(model: Path | str, **sections: Any) -> Config:
    return build_config(sections={"model": {"name": str(model), "dtype": "float32"}, **sections})


def test_the_plan_is_that_of_the_python_api(tiny_model: Path) -> None:
    config = config_of(tiny_model)
    recorded = [entry.name for entry in config.plugins if entry.name == "cpu_graphs"]
    built = build_engine(config)
    with LLM.from_config(config, load=False) as llm:
        assert built.plan == llm.plan
    assert built.limits.max_model_len == built.plan.max_model_len == built.spec.max_model_len
    assert built.files.source == tiny_model
    assert [control.plugin for control in built.controls] == ["prefix_cache", *recorded]


def test_it_loads_when_it_is_started(tiny_model: Path) -> None:
    engine = build_engine(config_of(tiny_model)).engine
    engine.start()
    engine.add("r", np.arange(3), SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
    emissions = [emission for _ in range(2) for emission in engine.step()]
    assert [len(emission.token_ids) for emission in emissions] == [1, 1]
    assert (engine.step_rows, engine.step_tokens, engine.num_steps) == (2, 4, 2) and engine.step_seconds > 0
    assert engine.count_free_blocks() == engine.parts.kv.num_blocks
    engine.close()


def test_stages_that_live_elsewhere_are_not_made_and_count_all_the_same(tiny_model: Path) -> None:
    made = []

    @hookimpl
    def on_ingress(self: object) -> object:
        made.append(self)
        return self

    door = plugin("door", on_ingress=on_ingress)
    config = config_of(tiny_model, plugins={"door": {}})
    whole = build_engine(config, (door,))
    assert len(whole.stages) == len(made) == 1
    part = build(find(config, (door,)), has_ingress=False)
    assert len(part.stages) == 0 and len(made) == 1
    assert part.plan == whole.plan and "door" in str(part.plan)


def test_a_plugin_is_missed_before_a_model_is(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown plugin 'no_such'"):
        find(config_of("no-such-model", plugins={"no_such": {}}))
    with pytest.raises(ModelError):
        find(config_of(tiny_model / "nowhere"))


def test_finding_needs_no_torch(tiny_model: Path) -> None:
    code = (
        "import sys\n"
        "from switchgear.core.config import build_config\n"
        "from switchgear.core.engine.build import find\n"
        f"find(build_config(sections={{'model': {{'name': {str(tiny_model)!r}}}}}))\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("False", "")


def test_a_found_model_is_built_for_its_device(tiny_model: Path) -> None:
    found = find(config_of(tiny_model))
    assert (found.device.dtype, found.dtype_reason) == ("float32", "asked for")
    wide = replace(found, device=replace(found.device, dtype="float64"))
    assert build(wide).plan.dtype == "float64"
