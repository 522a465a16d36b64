"""`switchgear bisect`: prompts or a workload in, the smallest set and a command out."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser
from itertools import pairwise
from pathlib import Path

import pytest
from switchgear.core.cli import bisect
from switchgear.core.errors import ConfigError
from switchgear.core.recipes import SCHEDULING

from ..lab.planted_faults import RunnerHere
from .ended import Install
from .test_ablate import FAULTY

SCHEDULERS = [word for name in SCHEDULING for word in ("--on", name)]
OPTIONS = ("--recipe", "all_off", *SCHEDULERS, "--dtype", "float32", "--set", "engine.kv_bytes=8000000")


def run(model: Path, *more: str) -> int:
    parser = ArgumentParser()
    bisect.add_options(parser)
    return bisect.run(parser.parse_args(["--model", str(model), *OPTIONS, *more]))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchgear.core.lab.measured.ProcessRunner", lambda: RunnerHere(()))


def test_a_fault_is_found_and_the_command_finds_it_again(
    here: None,
    install: Install,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install("turned", FAULTY)
    given = ("--on", "turned", "--prompt", "a prompt of some words", "--raw", "--max-tokens", "8")
    monkeypatch.setattr(sys, "argv", ["switchgear", "bisect", "--model", str(tiny_model), *OPTIONS, *given])
    assert run(tiny_model, *given) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("turned: cold cache: after a prompt of")
    assert "none: same" in shown.err
    again = shlex.split(shown.out.split("Again: ")[1])
    off = [name for word, name in pairwise(again) if word == "--off"]
    assert sorted(off) == ["chunked_prefill", "continuous_batching", "paged_kv", "prefix_cache"]
    assert again[:2] == ["switchgear", "bisect"]
    parser = ArgumentParser()
    bisect.add_options(parser)
    assert bisect.run(parser.parse_args(again[2:])) == 0
    assert capsys.readouterr().out.startswith("turned: cold cache")


def test_a_workload_and_a_threshold(here: None, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = ("--workload", "shared-prefix", "--num-requests", "4", "--prefix-len", "32", "--input-len", "8")
    assert (
        run(
            tiny_model,
            *workload,
            "--output-len",
            "4",
            "--cache",
            "warm",
            "--threshold",
            "prefix_hit_rate>0.5",
            "--runs",
            "1",
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("paged_kv + prefix_cache: prefix_hit_rate is ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--prompt", "a", "--workload", "fixed"), "--prompt and --workload were both given"),
        (("--prompt", ""), "a prompt must not be empty"),
        (("--prompt", "a", "--cache", "hot"), "cannot read caches"),
        (("--threshold", "ttft_p50>1", "--strict"), "--strict has no effect with --threshold"),
        (("--threshold", "ttft_p50>1", "--cache", "cold,warm"), "a metric is measured with one state of the caches"),
        (("--threshold", "ttft_p50>1", "--runs", "0"), "--runs is 0"),
        (("--threshold", "ttft"), "cannot read threshold"),
        (("--keep", "nobody"), "cannot keep 'nobody'"),
        (("--prompt", "a", "--raw"), "nothing to find: with continuous_batching"),
    ],
)
def test_what_cannot_be_bisected(here: None, tiny_model: Path, options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run(tiny_model, *options)
