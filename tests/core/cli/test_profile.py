"""`switchgear profile` on the tiny model: all of it, with few steps."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli import profile
from switchgear.core.config import build_config
from switchgear.core.errors import ConfigError, SwitchgearError
from switchgear.core.lab.cost_model import CostModel, StepCounts

from ..lab.short_profiles import shorten


def run(*arguments: str | Path) -> int:
    parser = ArgumentParser()
    profile.COMMAND.add_options(parser)
    return profile.COMMAND.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def given(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | Path]:
    shorten(monkeypatch)
    return ["--model", tiny_model, "--dtype", "float32", "--set", "engine.kv_bytes=50000000", "--budget", "0.1"]


def test_it_writes_a_cost_model_and_a_config(
    given: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_file, config_file = tmp_path / "cost.json", tmp_path / "better.toml"
    assert run(*given, "--out", model_file, "--config-out", config_file, "--tpot", "10") == 0
    text = capsys.readouterr().out
    for heading in (
        "decode\n",
        "prefill\n",
        "cost model\n",
        "crossover  ",
        "free chunk  ",
        "what plugins cost",
        "recommended  ",
    ):
        assert heading in text
    assert "held-out points" in text
    model = CostModel.load(model_file)
    assert 0 < model.seconds(StepCounts.decode(1, 20)) < model.seconds(StepCounts.prefill(400))
    config = build_config(config_file)
    assert f"engine.max_num_seqs={config.engine.max_num_seqs}" in text
    assert "chunked_prefill" in [plugin.name for plugin in config.plugins]


def test_json_has_everything(given: list[str | Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*given, "--json", "--ttft", "1e-9") == 0
    table: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert CostModel.from_json(table).name.partition("; ")[2].startswith("continuous_batching, paged_kv, prefix_cache")
    measured = table["profile"]
    assert {point["kind"] for point in measured["points"]} == {"decode", "prefill", "mixed"}
    assert measured["fit"]["held_out"]["num_points"] > 3
    assert measured["num_rounds"] == 3
    assert {"batch_size", "doubles_at", "steps"} == set(measured["crossover"])
    assert measured["chunk"]["num_rows"] == 8
    assert [cost["plugin"] for cost in measured["costs"]["plugins"]][-1] == "core"
    assert measured["plan"] in table["source"] and measured["machine"]["processor"] in table["machine"]
    assert table["recommended"]["is_met"] is False
    assert table["recommended"]["reasons"][0]["setting"].startswith("engine.max_num_seqs=")


def test_with_everything_off_it_says_what_there_is_not(
    given: list[str | Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*given, "--recipe", "all_off", "--no-costs") == 0
    text = capsys.readouterr().out
    assert "free chunk    none: this scheduler runs no prompt beside decodes" in text
    assert "plugin costs  not asked for" in text
    assert "--on continuous_batching" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budget", "0"), "--budget is 0"),
        (("--tpot", "-1"), "--tpot is -1"),
        (("--input-len", "600"), "at most .* 512"),
        (("--out", "nowhere/cost.json"), "cannot write nowhere/cost.json"),
        (("--off", "native"), "cannot switch off 'native'"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(
    given: list[str | Path], arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchgear.core.lab.profile.make_profile", None)
    with pytest.raises(ConfigError, match=says):
        run(*given, *arguments)


def test_a_plugin_that_cannot_be_watched_costs_its_costs_alone(
    given: list[str | Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise SwitchgearError("it looks behind the clock")

    monkeypatch.setattr("switchgear.core.lab.profile.measure_costs", refuse)
    assert run(*given) == 0
    assert "plugin costs  the engine does not run with clocks around its plugins: " in capsys.readouterr().out
