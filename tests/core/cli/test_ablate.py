"""`switchgear ablate`: from options to a result file, a table and an exit code."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli import ablate
from switchgear.core.config import Config
from switchgear.core.errors import ConfigError, PluginError
from switchgear.core.lab.analysis import analyse
from switchgear.core.lab.results_file import read_rows
from switchgear.core.lab.workload import Workload

from ..lab.planted_faults import RunnerHere
from .ended import Install

SMALL = (
    *("--recipe", "all_off", "--on", "continuous_batching", "--on", "paged_kv", "--dtype", "float32"),
    *("--num-requests", "3", "--input-len", "12", "--output-len", "4", "--set", "engine.kv_bytes=8000000"),
)


def run(model: Path, out: Path, *more: str, small: tuple[str, ...] = SMALL) -> int:
    parser = ArgumentParser()
    ablate.add_options(parser)
    return ablate.run(parser.parse_args(["--model", str(model), "--out", str(out), *small, *more]))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, in ticks instead of seconds: without noise, so that two blocks are enough."""
    monkeypatch.setattr("switchgear.core.lab.measured.ProcessRunner", RunnerHere)
    monkeypatch.setattr("switchgear.core.lab.ablate.MIN_BLOCKS", 2)


def test_a_study_ends_in_tables_and_a_file(
    here: None, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    assert run(tiny_model, out, "--vary", "plugins.paged_kv.block_size=8,16") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("2 blocks, 0 void; precision: after 2 blocks every interval is within 5%")
    for switch in ("continuous_batching", "paged_kv", "plugins.paged_kv.block_size=8"):
        assert any(line.startswith(f"{switch} ") and "output_tokens_per_s" in line for line in shown.out.splitlines())
    assert shown.out.count("equal    ") == 4
    assert "block 1, run 1 of 5: all on, cold" in shown.err
    header, *rows = read_rows(out)
    assert header["recipe"] == "all_off" and header["switches"] == ["continuous_batching", "paged_kv"]
    assert header["engine"]["kv_bytes"] == 8000000 and header["machine"]["num_cores"] > 0
    plans = {row["arm"]: row["plan_hash"] for row in rows if row["kind"] == "arm"}
    assert len(set(plans.values())) == 4
    assert {row["dtype"] for row in rows if "dtype" in row} <= {"float32"}


def test_every_arm_has_the_limits_of_the_first(
    here: None, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Looks(RunnerHere):
        def measure(self, config: Config, workload: Workload, **options: Any) -> Any:
            seen.append((config.engine, config.model))
            return super().measure(config, workload, **options)

    monkeypatch.setattr("switchgear.core.lab.measured.ProcessRunner", Looks)
    run(tiny_model, tmp_path / "out", small=(*SMALL[:-2],))
    assert len(set(map(repr, seen))) == 1
    assert seen[0][0].kv_bytes > 0 and seen[0][0].max_model_len > 0


def test_refused_arms_are_shown_with_their_reason(
    here: None, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (*SMALL[:4], "--on", "paged_kv", "--on", "prefix_cache", *SMALL[6:])
    run(tiny_model, tmp_path / "out", "--design", "full", "--keep", "continuous_batching", small=small)
    shown = capsys.readouterr().out
    assert "refused  prefix_cache: plugin 'prefix_cache' requires 'paged_kv'" in shown
    assert "note  no interaction of paged_kv and prefix_cache" in shown
    header, *_ = read_rows(tmp_path / "out")
    assert header["kept"] == ["continuous_batching"]


FAULTY = '''
from dataclasses import replace
from switchgear.core.defaults import GatheredAttention

class Broken(GatheredAttention):
    def forward(self, q, cache, meta, out):
        super(Broken, self).forward(q, cache, meta, out)
        out.mul_(-1.0)

class Plugin:
    """Turns attention around."""

    name = "turned"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        """Nothing to set."""

    def __init__(self, config):
        pass

    @hookimpl
    def attention_impl(self, layer, codec, device):
        return Broken(layer, codec, device.type)
'''


@pytest.mark.slow
def test_an_installed_plugin_that_breaks_its_class_is_caught_in_processes_of_their_own(
    install: Install,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install("turned", FAULTY)
    small = (*SMALL[:2], "--on", "turned", *SMALL[6:])
    out = tmp_path / "results.jsonl"
    monkeypatch.setattr("switchgear.core.lab.ablate.MIN_BLOCKS", 1)
    monkeypatch.setattr("switchgear.core.lab.ablate.half_width", lambda effect: 0.0)
    assert run(tiny_model, out, "--drift-limit", "1", small=small) == 1
    shown = capsys.readouterr().out
    assert "BROKEN   all on (token_equal): after a prompt of 12 tokens" in shown
    assert "equal    all off" in shown
    analysis = analyse(out)
    assert {arm.name for arm in analysis.broken} == {"all on"}
    assert analysis.num_blocks >= 1


def test_what_makes_no_study_is_refused_before_anything_runs(here: None, tiny_model: Path, tmp_path: Path) -> None:
    for options, problem in (
        (("--design", "half"), "unknown design 'half'"),
        (("--cache", "hot"), "cannot read caches 'hot'"),
        (("--budget", "0"), "a budget of 0 s measures nothing"),
        (("--precision", "5"), "a precision of 5 is none"),
        (("--drift-limit", "0"), "a drift limit of 0 is none"),
        (("--check-tokens", "0"), "check_tokens is 0"),
        (("--vary", "plugins.paged_kv.size=8"), "unknown option 'size'"),
        (("--vary", "plugins.prefix_cache.scope=shared"), "cannot vary .*: plugin 'prefix_cache' is not on"),
        (("--keep", "prefix_cache"), "cannot keep 'prefix_cache', which is not on"),
    ):
        with pytest.raises((ConfigError, PluginError), match=problem):
            run(tiny_model, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_another_study_does_not_go_on_with_the_file(here: None, tiny_model: Path, tmp_path: Path) -> None:
    run(tiny_model, tmp_path / "out")
    before = (tmp_path / "out").read_text()
    with pytest.raises(ConfigError, match=r"its workload is .* give the options that it was made with"):
        run(tiny_model, tmp_path / "out", "--seed", "5")
    assert (tmp_path / "out").read_text() == before
    run(tiny_model, tmp_path / "out")
    assert (tmp_path / "out").read_text() == before
    assert all(json.loads(line) for line in before.splitlines())
