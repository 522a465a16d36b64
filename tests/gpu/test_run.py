"""The script for GPUs, as far as it can be tried without one: on a CPU with tiny shapes, and piece by piece."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear.core.engine.cuda import NoGPU, first_gpu

from .figures import Figure, lines_of
from .hardware import this_cpu
from .run import SECONDS, TOTAL_SECONDS, OutOfTime, Report, at_most
from .steps import batch_of

RUN = Path(__file__).with_name("run.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_every_section_runs_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    file = tmp_path / "figures.json"
    done = run("--cpu-smoke", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["errors"] == {} and found["is_small"]
    assert (
        [*dict.fromkeys(figure["section"] for figure in found["figures"])]
        == list(SECONDS)
        == [*found["section_seconds"]]
    )
    points = {figure["point"].partition(",")[0] for figure in found["figures"] if figure["section"] == "correctness"}
    assert {"flash_prefill", "flash_decode", "kv_write", "rms_norm", "decode steps replayed"} <= points
    assert all(figure["value"] >= 0 and not figure["is_wrong"] for figure in found["figures"])
    assert all(figure["point"] in done.stdout for figure in found["figures"])


def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    try:
        first_gpu()
    except NoGPU as reason:
        done = run("--json", str(tmp_path / "figures.json"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"There is no GPU to measure: {reason}.\n"
    else:
        pytest.skip("there is a GPU")


def test_the_sections_together_keep_to_the_time() -> None:
    assert sum(SECONDS.values()) <= TOTAL_SECONDS < 360


# -- a section that fails -------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(this_cpu(), tmp_path / "figures.json")


def test_a_section_that_fails_loses_neither_its_own_figures_nor_the_next(report: Report) -> None:
    def broken() -> Iterator[Figure]:
        yield Figure("decode", "first", 1, "ms")
        raise ValueError("no such kernel")

    report.run("decode", broken)
    report.run("prefill", lambda: iter([Figure("prefill", "second", 2, "ms")]))
    found = json.loads(report.file.read_text())
    assert [figure["point"] for figure in found["figures"]] == ["first", "second"]
    assert found["errors"] == {"decode": "ValueError: no such kernel"}


def test_a_section_that_takes_too_long_is_stopped(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> Iterator[Figure]:
        yield Figure("decode", "first", 1, "ms")
        try:
            time.sleep(30)
        except Exception as error:  # as an engine does, whose plugin raised
            raise AssertionError("the time was taken for an error") from error

    monkeypatch.setitem(SECONDS, "decode", 0.05)
    report.run("decode", slow)
    assert report.seconds < 20 and len(report.figures) == 1
    assert report.errors["decode"].startswith("more than")
    monkeypatch.setattr("time.perf_counter", lambda: report.started + TOTAL_SECONDS)
    report.run("prefill", slow)
    assert "prefill" in report.errors and len(report.figures) == 1


def test_no_time_at_all_is_too_little() -> None:
    with pytest.raises(OutOfTime), at_most(0):
        raise AssertionError("it ran")


# -- what is found --------------------------------------------------------------------------------------------------


def test_a_verdict_is_of_the_result_before_it_is_of_the_goal() -> None:
    assert Figure("s", "p", 1, "ms").verdict == Figure("s", "p", 1, "ms", share=0.5).verdict == ""
    assert Figure("s", "p", 1, "ms", share=0.8, goal=0.8).verdict == "met"
    assert Figure("s", "p", 1, "ms", share=0.79, goal=0.8).verdict == "MISSED"
    assert Figure("s", "p", 1, "ms", share=1, goal=0.8, is_wrong=True).verdict == "WRONG"
    lines = lines_of([Figure("decode", "64 x 2048", 9.36, "ms", 0.8, "floor", 0.75)])
    assert len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["decode", "64 x 2048", "9.36 ms", "0.80", "floor", "0.75", "met"]


def error_of_kernel(given: torch.Tensor, dtype: torch.dtype = torch.float32) -> float:
    from .correctness import error_of

    class Planted:
        def kernel(self) -> Any:
            return (given,)

        def naive(self) -> Any:
            return (torch.tensor([1.0, 2.0]),)

        def exact(self) -> Any:
            return (torch.tensor([1.0, 2.0 + 1e-6], dtype=torch.float64),)

    return error_of(Planted(), dtype)


def test_a_wrong_kernel_is_seen() -> None:
    pytest.importorskip("triton")
    assert error_of_kernel(torch.tensor([1.0, 2.0])) < 1
    for wrong in (torch.tensor([1.0, 2.1]), torch.tensor([torch.nan, 2.0]), torch.ones(2, 1), torch.ones(2).double()):
        assert not error_of_kernel(wrong) <= 1


@pytest.mark.parametrize(("num_rows", "num_queries", "context"), [(3, 1, 20), (2, 20, 20), (2, 5, 37)])
def test_a_made_step_is_one_that_the_engine_could_make(num_rows: int, num_queries: int, context: int) -> None:
    batch = batch_of(num_rows, num_queries, context, 16)
    table, row_of = batch.block_tables[0], np.repeat(np.arange(num_rows), batch.query_lens)
    assert sorted(table.ravel()) == list(range(table.size)) and table.shape[1] == -(-context // 16)
    assert batch.query_lens.tolist() == [num_queries] * num_rows and batch.context_lens.tolist() == [context] * num_rows
    for row in range(num_rows):
        assert batch.positions[row_of == row].tolist() == list(range(context - num_queries, context))
    assert (batch.slots[0] // 16 == table[row_of, batch.positions // 16]).all()
    assert (batch.slots[0] % 16 == batch.positions % 16).all()
    assert batch.outputs.tolist() == [num_queries * (row + 1) - 1 for row in range(num_rows)]
    in_line = batch_of(num_rows, num_queries, context, 16, is_shuffled=False)
    assert in_line.block_tables[0].ravel().tolist() == list(range(table.size))
