"""A process for each run: what comes back of one that answers, refuses, dies, hangs or prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.config import build_config
from switchgear.core.errors import PluginError
from switchgear.core.lab import measured
from switchgear.core.lab.equality import Answer
from switchgear.core.lab.measured import ArmFailed, Measured, ProcessRunner, run_job
from switchgear.core.lab.workloads import shared_prefix


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that is run instead."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(measured, "MODULE", "the_child")
    return tmp_path / "the_child.py"


def test_a_job_goes_in_and_a_result_comes_out(child: Path) -> None:
    child.write_text("import json, sys; print(json.dumps({'got': json.load(sys.stdin)['warm']}))")
    assert run_job({"warm": True}, None) == {"got": True}


def test_a_refusal_is_its_sentence(child: Path) -> None:
    child.write_text('import sys; sys.stdin.read(); print(\'{"refused": "plugin a requires b"}\')')
    with pytest.raises(PluginError, match=r"^plugin a requires b$") as error:
        run_job({}, None)
    assert not isinstance(error.value, ArmFailed)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise KeyError('k')", "its process ended with exit code 1: KeyError: 'k'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process ended with signal 9: it said nothing"),
        ("import sys; sys.exit(3)", "exit code 3: it said nothing"),
    ],
)
def test_a_process_that_dies_is_a_failure_with_its_last_words(source: str, problem: str, child: Path) -> None:
    child.write_text(f"import sys; sys.stdin.read(); {source}")
    with pytest.raises(ArmFailed, match=problem):
        run_job({}, None)


def test_a_process_that_hangs_is_ended(child: Path) -> None:
    child.write_text("import time; time.sleep(600)")
    with pytest.raises(ArmFailed, match="it was not done in 1 s, and was ended"):
        run_job({}, 1.0)


def test_the_hash_of_outputs_knows_requests_apart() -> None:
    def outputs(*answers: Answer) -> str:
        return Measured("", "", 0, 0, {}, (), (), answers).outputs

    assert outputs(Answer(0, (1, 2)), Answer(1, (3,))) == outputs(Answer(0, (1, 2), "x"), Answer(1, (3,)))
    assert outputs(Answer(0, (1, 2)), Answer(1, (3,))) != outputs(Answer(0, (1,)), Answer(1, (2, 3)))
    assert outputs(Answer(0, (12,))) != outputs(Answer(0, (1, 2)))


NOISY = '''
class Plugin:
    """Prints where results are printed."""

    name = "noisy"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        """Nothing to set."""

    def __init__(self, config):
        print("{not json")

    @hookimpl
    def observe(self):
        return self

    def on_events(self, events):
        print("and more")
'''


@pytest.mark.slow
def test_the_real_process_runs_an_engine_cold_and_warm_whatever_plugins_print(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from switchgear.core.config import PluginConfig\nfrom switchgear.core.hooks import hookimpl\n"
    (tmp_path / "noisy.py").write_text(f"{head}from switchgear.core.records import TOKEN_EQUAL\n{NOISY}")
    information = tmp_path / "noisy-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[switchgear.plugins]\nnoisy = noisy:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    sections = {"model": {"name": str(tiny_model), "dtype": "float32"}, "engine": {"kv_bytes": 1 << 24}}
    config = build_config(recipe="recommended", on=["noisy"], sections=sections)
    workload = shared_prefix(3, 32, 8, 4)
    cold, warm = (ProcessRunner().measure(config, workload, warm=warm, timeout=600) for warm in (False, True))
    assert cold.plan_hash == warm.plan_hash and cold.outputs == warm.outputs
    assert warm.metrics["prefix_hit_rate"] > cold.metrics["prefix_hit_rate"]
    assert [len(answer.token_ids) for answer in warm.answers] == [4, 4, 4]
    assert len(warm.ttft) == 3
