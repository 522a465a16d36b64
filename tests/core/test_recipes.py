"""What the recipes hold on which machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core import recipes
from switchgear.core.config import build_config, plain
from switchgear.core.errors import PluginError
from switchgear.core.testing.tiny import make_tiny_model

SCHEDULING: dict[str, Any] = {"continuous_batching": {}, "paged_kv": {}, "prefix_cache": {}, "chunked_prefill": {}}
NATIVE: dict[str, Any] = {"flash_attention": {}, "native_cpu": {}, "cpu_graphs": {}}


@pytest.fixture(autouse=True)
def _a_cpu_with_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "GPU_DEVICES", ())
    monkeypatch.setattr(recipes, "lack_of", lambda plugin: "")


def held(*overrides: str, **sections: Any) -> dict[str, Any]:
    return plain(build_config(overrides=overrides, sections=sections).plugins)


def test_native_kernels_are_recommended_on_a_cpu_that_has_them() -> None:
    assert held() == SCHEDULING | NATIVE == held("model.device=cpu") == held(model={"dtype": "float32"})


@pytest.mark.parametrize("override", ["model.device=cuda", "model.dtype=float16"])
def test_they_are_not_where_they_would_refuse(override: str) -> None:
    assert held(override) == SCHEDULING


def test_they_are_not_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "lack_of", lambda plugin: f"{plugin} is not built")
    assert held() == SCHEDULING


def test_a_gpu_that_the_machine_has_is_left_to_the_kernels_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(recipes, "GPU_DEVICES", (tmp_path / "nvidiactl",))
    assert held() == SCHEDULING
    assert held("model.device=cpu") == SCHEDULING | NATIVE


def test_what_is_recommended_can_be_set_and_switched_off() -> None:
    config = build_config(overrides=["plugins.flash_attention.backend=sdpa"], off=["native_cpu"])
    assert plain(config.plugins) == SCHEDULING | {"flash_attention": {"backend": "sdpa"}, "cpu_graphs": {}}


def test_what_nobody_named_may_be_of_no_use() -> None:
    assert build_config().optional == {*SCHEDULING, *NATIVE} == build_config(recipe="recommended").optional
    named = build_config(on=["paged_kv"], off=["native_cpu"], overrides=["plugins.flash_attention.backend=sdpa"])
    assert named.optional == {*SCHEDULING, "cpu_graphs"} - {"paged_kv"}
    assert build_config(sections={"plugins": {"paged_kv": {}}}).optional == frozenset()


def test_what_requires_a_plugin_that_is_switched_off_goes_with_it_unless_it_was_named() -> None:
    assert held_without("flash_attention") == {**SCHEDULING, "native_cpu": {}}
    assert "prefix_cache" not in held_without("paged_kv")
    named = build_config(on=["cpu_graphs"], off=["flash_attention"])
    assert "cpu_graphs" in plain(named.plugins) and "cpu_graphs" not in named.optional


def held_without(name: str) -> dict[str, Any]:
    return plain(build_config(off=[name]).plugins)


def test_a_model_whose_steps_cannot_be_recorded_runs_under_the_recommended_recipe(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family="mixtral")
    with LLM(str(model), dtype="float32") as llm:
        assert list(llm.plan.degraded) == ["cpu_graphs"] and "the plain experts" in llm.plan.degraded["cpu_graphs"]
        assert len(llm.generate([[3, 4]], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4
    config = build_config(on=["cpu_graphs"], sections={"model": {"name": str(model), "dtype": "float32"}})
    with pytest.raises(PluginError, match="'cpu_graphs' is on and has no effect here: the plain experts ask the host"):
        LLM.from_config(config)


def test_what_the_machine_lacks_is_known_without_pytorch() -> None:
    code = "import sys; from switchgear.core.config import build_config; build_config(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
