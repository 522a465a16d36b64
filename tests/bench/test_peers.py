"""The comparison with other engines runs from end to end, on a model that takes no time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from switchgear.core.lab.points import Point
from switchgear.core.testing.tiny import make_tiny_model

from .peers import OURS, Side, SideEnded, measure

PROGRAM = Path(__file__).with_name("peers.py")
DEFINITION = PROGRAM.parents[3] / "shared" / "peers" / "raw.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)


@pytest.fixture(autouse=True)
def has_definition() -> None:
    if not DEFINITION.is_file():
        pytest.skip("the definition of the points is not beside this checkout")


@pytest.mark.slow
def test_sides_run_in_turn_and_who_is_missing_is_named(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", vocab_size=40_000)
    points = ("--points", "2x8x3,1x16x1", "--runs", "2")
    ended = run(tmp_path, "--model", model, "--sides", "vllm,transformers", *points, "--json")
    assert ended.returncode == 0, ended.stderr
    assert "vllm         not installed\n" in ended.stdout
    *_, last = ended.stdout.splitlines()
    seconds = json.loads(last)
    assert list(seconds) == ["2x8x3", "1x16x1"]
    for by_side in seconds.values():
        assert {name: len(taken) for name, taken in by_side.items()} == {"switchgear": 2, "transformers": 2}
    turns = [line.split()[3] for line in ended.stderr.splitlines() if line.startswith("2x8x3 run")]
    assert turns == ["switchgear", "transformers"] * 3


def test_what_cannot_run_is_one_sentence(tmp_path: Path) -> None:
    ended = run("--sides", "vllm", "--model", make_tiny_model(tmp_path / "model"), "--points", "1x16")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert ended.stderr.startswith("error: cannot read point '1x16'")


@pytest.mark.slow
def test_what_is_on_is_for_our_side_which_has_to_run(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    ended = run("--model", model, "--sides", "vllm", "--points", "2x8x3", "--runs", "1", "--on", "no_such_plugin")
    assert ended.returncode == 1
    assert "switchgear ended by itself: " in ended.stdout and "unknown plugin 'no_such_plugin'" in ended.stdout


ANSWER = """
import sys
print('{"startup_s": 0, "version": "1"}', flush=True)
for index, line in enumerate(sys.stdin):
    if index == int(sys.argv[1]):
        sys.exit("the reason")
    print('{"seconds": 1.5}', flush=True)
"""


def test_a_peer_that_ends_is_told_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    point = Point(1, 2, 3)
    every = [
        Side(name, [sys.executable, "-c", ANSWER, str(after)], tmp_path / f"{name}.log")
        for name, after in ((OURS, 7), ("early", 1), ("late", 5))
    ]
    sides = [*every]
    for side in every:
        side.open()
    assert measure(sides, point, 2) == {OURS: [1.5] * 2, "late": [1.5] * 2}
    assert [side.name for side in sides] == [OURS, "late"]
    assert measure(sides, point, 2) == {OURS: [1.5] * 2}
    said = capsys.readouterr().out
    assert (
        "early ended by itself: the reason, at 1x2x3: it is left out from there on\n" in said and "late ended" in said
    )
    with pytest.raises(SideEnded, match="switchgear ended by itself: the reason"):
        measure(sides, point, 2)
    for side in every:
        side.close()
