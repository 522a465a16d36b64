"""`switchgear doctor --from`: a server that really runs, a recorded page, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from ..gateway.served import serving
from ..lab.recorded_metrics import BUSY, FOREIGN
from .ended import RunCommand


def test_a_running_server_is_walked_through(command: RunCommand, tiny_model: Path) -> None:
    with serving(tiny_model, "--recipe", "all_off", "--on", "paged_kv", "--on", "prefix_cache") as served:
        body = {"model": str(tiny_model), "prompt": "one two three", "max_tokens": 4, "temperature": 0}
        for _ in range(3):
            assert httpx2.post(f"{served.url}/v1/completions", json=body, timeout=60.0).status_code == 200
        ended = command("doctor", "--from", f"{served.url}/metrics", "--json")
        text = command("doctor", "--from", f"{served.url}/metrics").out
    assert ended.code == 0
    checks = {(check["group"], check["subject"]): check for check in ended.json["checks"]}
    assert "of 3" in checks["time to first token", "time itself"]["value"]
    assert checks["time to first token", "attention implementation"]["value"].startswith("core: eager")
    assert checks["time per output token", "effective batch size"]["value"].endswith("at most 64")
    # the plan was read, and all that traffic counts is there: only a cost model is missing
    assert [key[1] for key, check in checks.items() if check["state"] == "missing"] == ["memory-bound again"]
    assert "try: --on flash_attention" in text
    assert text.startswith("time to first token\n  ok")


def test_a_recorded_page_will_do(command: RunCommand, tmp_path: Path) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(BUSY)
    ended = command("doctor", "--from", page)
    assert ended.code == 0
    assert "the plan could not be read" in ended.out
    assert "p50 180.0 ms" in ended.out


def test_two_looks_count_what_came_between(command: RunCommand, tmp_path: Path) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(BUSY)
    ended = command("doctor", "--from", page, "--over", "0.01")
    # the page did not change, so that nothing came
    assert "switchgear_time_to_first_token_seconds: not there, or nothing counted yet" in ended.out


def test_a_cost_model_answers_what_was_missing(command: RunCommand, tmp_path: Path) -> None:
    from switchgear.core.lab.cost_model import CostModel

    page, profile = tmp_path / "metrics.txt", tmp_path / "cost.json"
    page.write_text(BUSY)
    import json

    profile.write_text(json.dumps(CostModel("m", "by hand", "none", fixed=0.01, per_row=0.005).to_json()))
    assert "by the cost model" in command("doctor", "--from", page, "--profile", profile).out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "http://127.0.0.1:9/metrics"), "cannot read http://127.0.0.1:9/metrics"),
        (("--from", "nowhere.txt"), "cannot read nowhere.txt (No such file or directory)"),
        (("--from", "FOREIGN"), "none of switchgear's metrics"),
        (("--from", "FOREIGN", "--over", "-1"), "--over is -1"),
        (("--over", "3"), "--over is about a running server: name it with --from"),
        (("--api-key-file", "key"), "--api-key-file is about a running server"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    command: RunCommand, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(FOREIGN)
    ended = command("doctor", *(page if argument == "FOREIGN" else argument for argument in arguments))
    assert ended.code == 1
    assert says in ended.err and ended.err.count("\n") == 1
