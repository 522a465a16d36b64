import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli.bench_options import add_bench_options, bench_config
from switchgear.core.cli.main import main
from switchgear.core.lab import ceilings, roofline

from .ended import Ended, RunCommand

SMALL = ("--points", "2x8x4,1x16x1", "--runs", "1", "--dtype", "float32")


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine allows is looked for where that takes no time."""
    monkeypatch.setattr(ceilings, "SECONDS_EACH", 0.02)
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", (128,))
    monkeypatch.setattr(roofline, "far_bytes", lambda *_: 2**22)


def lines(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def plugins_of(*arguments: str | Path) -> list[str]:
    parser = ArgumentParser()
    add_bench_options(parser)
    return [plugin.name for plugin in bench_config(parser.parse_args([str(each) for each in arguments])).plugins]


def test_raw_prints_a_row_for_each_point(command: RunCommand, tiny_model: Path) -> None:
    ended = command("bench", "raw", "--model", tiny_model, *SMALL)
    assert (ended.code, ended.err) == (0, "")
    heading, _, table = ended.out.partition("\n\n")
    assert "plugins: continuous_batching, paged_kv" in heading
    assert [line.split()[0] for line in table.splitlines()] == ["point", "2x8x4", "1x16x1"]


def test_raw_in_json_is_a_line_for_the_start_and_one_for_each_point(command: RunCommand, tiny_model: Path) -> None:
    start, *points = lines(command("bench", "raw", "--model", tiny_model, *SMALL, "--json"))
    plan = command("plan", "--model", tiny_model, "--dtype", "float32", "--off", "prefix_cache", "--json").json
    assert start["peer"] == "switchgear" and start["startup_s"] >= 0
    assert [(line["num_requests"], line["input_len"], line["output_len"]) for line in points] == [(2, 8, 4), (1, 16, 1)]
    for line in (start, *points):
        assert (line["plan"], line["environment"]) == (plan["hash"], plan["environment"])
        assert {"torch", "python"} <= set(line["versions"]) and line["machine"]["num_cores"] > 0


def test_roofline_prints_the_stages_apart(command: RunCommand, tiny_model: Path, small_machine: None) -> None:
    ended = command("bench", "roofline", "--model", tiny_model, *SMALL)
    assert (ended.code, ended.err) == (0, "")
    assert "GB/s far beyond the caches" in ended.out and "GFLOP/s in float32" in ended.out
    rows = [tuple(line.split()[:2]) for line in ended.out.partition("\n\n")[2].splitlines()[1:]]
    assert rows == [("2x8x4", "prefill"), ("2x8x4", "decode"), ("1x16x1", "prefill")]


def test_roofline_in_json_is_one_object(command: RunCommand, tiny_model: Path, small_machine: None) -> None:
    table = command("bench", "roofline", "--model", tiny_model, *SMALL, "--json").json
    assert min(table["far_bytes_per_s"], table["weights_bytes_per_s"], table["flops_per_s"]["bfloat16"]) > 0
    assert [(share["stage"], share["output_len"]) for share in table["shares"]] == [
        ("prefill", 4),
        ("decode", 4),
        ("prefill", 1),
    ]
    assert len(table["plan"]) == 16


def test_only_the_default_recipe_is_taken_without_its_prefix_cache(tmp_path: Path) -> None:
    assert "prefix_cache" not in plugins_of()
    assert plugins_of("--off", "prefix_cache") == plugins_of()
    assert "prefix_cache" in plugins_of("--on", "prefix_cache")
    assert "prefix_cache" in plugins_of("--recipe", "recommended")
    (tmp_path / "config.toml").write_text("[plugins.paged_kv]\n[plugins.prefix_cache]\n")
    assert plugins_of("--config", tmp_path / "config.toml") == ["paged_kv", "prefix_cache"]


@pytest.mark.parametrize("kind", ["raw", "roofline"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--points", "1x16"), "cannot read point '1x16'"),
        (("--runs", "0"), "--runs is 0: a point needs at least one run"),
        (("--points", "1x600x8"), "point 1x600x8 has sequences of 608 tokens"),
        (("--on", "pagedkv"), "unknown plugin 'pagedkv'"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    command: RunCommand, tiny_model: Path, kind: str, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = command("bench", kind, "--model", tiny_model, *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "nonsense"], ["bench", "raw", "--run", "3"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: switchgear")


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_stands_before_or_after_the_kind(command: RunCommand, place: str) -> None:
    arguments = ("--debug", "raw") if place == "before" else ("raw", "--debug")
    assert command("bench", *arguments, "--points", "1").err.startswith("Traceback")
