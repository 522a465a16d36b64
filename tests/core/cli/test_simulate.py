"""The command that tries a config in virtual time."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli import simulate
from switchgear.core.errors import ConfigError
from switchgear.core.lab.cost_model import CostModel, Curve

from .ended import Ended

SMALL = ("--kv-tokens", "2000", "--set", "engine.max_model_len=256", "--num-requests", "6", "--output-len", "8")


@pytest.fixture
def cost_model(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    model = CostModel("made-up-1b", "made for a test", "no machine", fixed=0.01, tokens=Curve((1, 2), (0.001, 0.002)))
    path.write_text(json.dumps(model.to_json()))
    return path


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ended:
    parser = ArgumentParser()
    simulate.COMMAND.add_options(parser)
    code = simulate.COMMAND.run(parser.parse_args([str(each) for each in arguments]))
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err)


def lines(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def test_it_prints_what_was_simulated_and_what_came_of_it(capsys: pytest.CaptureFixture[str], cost_model: Path) -> None:
    ended = command(capsys, "--cost-model", cost_model, "--replicas", "2", *SMALL)
    heading, times, *_ = ended.out.split("\n\n")
    assert ended.code == 0
    assert "costs    made-up-1b, of no machine: made for a test" in heading
    assert "engines  2 of 125 KV blocks of 16 tokens" in heading
    assert times.splitlines()[1].startswith("time to first token")
    assert "requests of each replica: 3, 3" in ended.out
    assert "a second" in ended.err


def test_json_has_a_start_each_request_and_the_run_and_repeats_byte_for_byte(
    capsys: pytest.CaptureFixture[str], cost_model: Path
) -> None:
    arguments = ("--cost-model", cost_model, "--json", "--rate", "5", "--seed", "3", *SMALL)
    ended, again = (command(capsys, *arguments) for _ in range(2))
    assert ended.out == again.out and ended.err == ""
    start, *requests, run = lines(ended)
    assert [start["kind"], run["kind"], len(requests)] == ["start", "run", 6]
    assert start["cost_model"] == {"name": "made-up-1b", "source": "made for a test", "machine": "no machine"}
    assert {"plan", "environment", "versions", "replicas", "workload"} <= start.keys()
    # a step of one row computes 128 tokens of prompt, then one token at a time
    assert requests[0]["ttft"] == pytest.approx(0.01 + 0.128)
    assert run["metrics"]["output_tokens_per_s"] > 0 and "client_cpu_seconds" not in run["metrics"]


def test_another_seed_is_another_run(capsys: pytest.CaptureFixture[str], cost_model: Path) -> None:
    first, second = (
        command(capsys, "--cost-model", cost_model, "--json", "--rate", "5", "--seed", seed, *SMALL).out
        for seed in ("1", "2")
    )
    assert first != second


def test_the_price_is_of_all_replicas(capsys: pytest.CaptureFixture[str], cost_model: Path) -> None:
    ended = command(capsys, "--cost-model", cost_model, "--json", "--replicas", "2", "--price-per-hour", "3.6", *SMALL)
    metrics = lines(ended)[-1]["metrics"]
    assert metrics["cost_per_million_tokens"] == pytest.approx(2 * 0.001 / metrics["output_tokens_per_s"] * 1e6)


def test_a_failed_request_is_exit_code_1(capsys: pytest.CaptureFixture[str], cost_model: Path) -> None:
    ended = command(capsys, "--cost-model", cost_model, *SMALL[2:], "--kv-tokens", "64", "--input-len", "100")
    assert ended.code == 1 and "failed   6: the request needs" in ended.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--stop-at-eos",), "--stop-at-eos has no effect"),
        (("--model", "smollm2-135m"), "--model has no effect beside --kv-tokens"),
        (("--price-per-hour", "-1"), "must be 0 or more"),
        (("--replicas", "0"), "at least one"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], cost_model: Path, arguments: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        command(capsys, "--cost-model", cost_model, *SMALL, *arguments)


def test_a_cost_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read cost model .*nothing\.json"):
        command(capsys, "--cost-model", tmp_path / "nothing.json", *SMALL)
