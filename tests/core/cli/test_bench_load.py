import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli.bench_target import progress
from switchgear.core.cli.interrupt import interrupts
from switchgear.core.lab.metrics import METRICS
from switchgear.core.lab.served import Served

from .ended import Ended, RunCommand

HERE = ("--dtype", "float32", "--set", "engine.kv_bytes=4000000")
SMALL = ("--num-requests", "3", "--input-len", "20", "--output-len", "5")


def lines(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def test_load_prints_times_and_figures(command: RunCommand, tiny_model: Path) -> None:
    objective = ("--ttft", "60", "--tpot", "60", "--price-per-hour", "2")
    ended = command("bench", "load", "--model", tiny_model, *HERE, *SMALL, *objective)
    assert (ended.code, ended.err) == (0, "")
    heading, times, figures = ended.out.split("\n\n")
    assert "plan     " in heading and "asked    fixed (" in heading and "num_requests 3  input_len 20" in heading
    assert times.splitlines()[0].split() == ["seconds", "mean", "p50", "p90", "p99", "max"]
    assert "share of requests that meet the objective  100.0%" in figures
    assert "price of a million output tokens" in figures and "rows in a step" in figures


def test_load_in_json_is_a_line_for_each_request_between_the_start_and_the_run(
    command: RunCommand, tiny_model: Path
) -> None:
    ended = command("bench", "load", "--model", tiny_model, *HERE, *SMALL, "--clients", "1", "--json")
    start, *requests, run = lines(ended)
    plan = command("plan", "--model", tiny_model, *HERE, "--json").json
    assert [line["kind"] for line in (start, *requests, run)] == ["start", *["request"] * 3, "run"]
    assert [line["index"] for line in requests] == [0, 1, 2]
    assert {(line["num_prompt"], line["num_output"], line["error"]) for line in requests} == {(20, 5, "")}
    for line in (start, run):
        assert (line["plan"], line["environment"]) == (plan["hash"], plan["environment"])
        assert {"torch", "python"} <= set(line["versions"]) and line["machine"]["num_cores"] > 0
        assert line["workload"]["about"]["num_clients"] == 1
    assert set(run["metrics"]) <= set(METRICS) and run["metrics"]["batch_size"] == 1.0 and run["is_whole"]
    mean = sum(line["ttft"] for line in requests) / 3
    assert run["metrics"]["ttft_mean"] == pytest.approx(mean)


def test_a_warm_run_finds_what_the_one_before_it_left(command: RunCommand, tiny_model: Path) -> None:
    arguments = ("bench", "load", "--model", tiny_model, *HERE, *SMALL, "--json")
    cold, warm = (lines(command(*arguments, *more))[-1]["metrics"] for more in ((), ("--warm",)))
    assert (cold["prefix_hit_rate"], warm["prefix_hit_rate"]) == (0.0, 16 / 20)


def test_a_request_that_fails_is_shown_and_is_exit_code_1(
    command: RunCommand, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("Hello\n" + "long " * 600)
    ended = command("bench", "load", "--model", tiny_model, *HERE, "--workload", tmp_path / "prompts.txt")
    assert ended.code == 1
    assert "failed requests                            1" in ended.out
    assert "failed   1: the prompt has" in ended.out.splitlines()[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO()])
def test_progress_is_a_bar_where_somebody_looks(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    told: list[Served] = []
    one = Served(0, 0.0, 0.0, (1.0, 2.0), 2.0, num_prompt=3, num_output=2)
    with progress(3, "measuring", told.append) as tell:
        tell(one)
    assert told == [one]
    assert ("measuring" in stderr.getvalue() and "/3" in stderr.getvalue()) is stderr.isatty()


def test_the_first_ctrl_c_asks_to_stop_and_the_second_ends_it() -> None:
    with interrupts() as is_interrupted:
        assert not is_interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_ctrl_c_shows_what_was_measured(tiny_model: Path) -> None:
    words = ["bench", "load", "--model", str(tiny_model), *HERE, "--num-requests", "2000", "--clients", "1", "--json"]
    command = [sys.executable, "-m", "switchgear", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        start, first = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (start["kind"], first["kind"]) == ("start", "request")
        process.send_signal(signal.SIGINT)
        *requests, run = [first, *map(json.loads, process.stdout)]
    assert process.returncode == 130
    assert run["kind"] == "run" and not run["is_whole"]
    assert run["metrics"]["requests_per_s"] * run["metrics"]["seconds"] == pytest.approx(len(requests))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ttft", "1"), "an objective needs both --ttft and --tpot"),
        (("--ttft", "0", "--tpot", "1"), "the objective's TTFT is 0 s"),
        (("--price-per-hour", "-1"), "--price-per-hour is -1: it must be 0 or more"),
        (("--input-len", "510"), "64 of 64 requests are longer than the 512 tokens"),
        (("--vocab-size", "3"), "--vocab-size has no effect without --url"),
        (("--url", "http://127.0.0.1:9", "--on", "paged_kv"), "--on has no effect with --url"),
        (("--url", "ftp://x"), "cannot read the URL 'ftp://x'"),
        (("--url", "http://127.0.0.1:9", "--api-key-file", "/nothing/here"), "cannot read /nothing/here"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    command: RunCommand, tiny_model: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    here = () if "--url" in arguments else ("--model", str(tiny_model), *HERE)
    ended = command("bench", "load", *here, *arguments)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"error: {sentence}")
