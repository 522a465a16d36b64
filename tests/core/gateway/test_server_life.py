"""How a server begins and ends, and what becomes of it when its engine does not go on."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from switchgear.core.testing.tiny import make_tiny_model

from .served import PROGRAM, Served, is_alive, serving, wait_for

SECONDS_TO_HEAR = 2.0
"""Until an open request hears that the engine died; a quiet machine takes a quarter of it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes seconds for a long answer."""
    return make_tiny_model(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    """For a test that ends it."""
    with serving(model, "--served-model-name", "tiny", "--drain-seconds", "20") as served:
        yield served


@pytest.fixture(scope="module")
def lasting(model: Path) -> Iterator[Served]:
    """For tests that it survives."""
    with serving(model, "--served-model-name", "tiny") as served:
        yield served


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "x", "ignore_eos": True, **fields}


def stream(url: str, num_tokens: int) -> tuple[list[str], float]:
    """The data lines of a streamed answer, and the time at which it ended."""
    with httpx2.stream(
        "POST", f"{url}/v1/completions", json=asked(max_tokens=num_tokens, stream=True), timeout=60
    ) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return lines, time.monotonic()


# -- the beginning --------------------------------------------------------------------------------------------------


def test_while_the_model_loads_the_port_answers_and_says_when_to_come_again(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    served = Served(model, "--port", str(port))
    try:
        url = f"http://127.0.0.1:{port}"
        early = wait_for(lambda: first_answer(f"{url}/ready"))
        assert early.status_code == 503
        assert early.json()["error"]["code"] == "engine_not_ready"
        assert 0 < float(early.headers["retry-after"]) <= 120
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/metrics").status_code == 200
        assert httpx2.post(f"{url}/v1/completions", json=asked()).status_code == 503
        assert served.url == url
        assert httpx2.get(f"{url}/ready").status_code == 200
    finally:
        assert served.end() == 0


def first_answer(url: str) -> httpx2.Response | None:
    try:
        return httpx2.get(url)
    except httpx2.TransportError:
        return None


def test_the_line_that_says_ready_names_a_command_that_works(lasting: Served) -> None:
    assert lasting.url
    command = wait_for(lambda: next((line for line in lasting.log if line.startswith("try: ")), ""))
    ended = subprocess.run(["bash", "-c", command.removeprefix("try: ")], capture_output=True, text=True)
    assert msgspec.json.decode(ended.stdout)["object"] == "chat.completion"


def test_the_gateway_has_no_torch(lasting: Served) -> None:
    assert lasting.url
    assert "torch" not in Path(f"/proc/{lasting.process.pid}/maps").read_text()
    assert "torch" in Path(f"/proc/{lasting.engine}/maps").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "no-such-model-anywhere"], "error: .*no-such-model-anywhere"),
        (["--on", "no_such_plugin"], "error: unknown plugin 'no_such_plugin'"),
        (["--api-keys", "/no/such/file"], "error: cannot read the API keys"),
        (["--drain-seconds", "-1"], r"error: \[server\]: .*drain_seconds"),
        (["--host", "203.0.113.9"], "error: cannot listen on 203.0.113.9"),
    ],
)
def test_a_server_that_cannot_start_is_one_sentence_and_exit_code_1(
    tiny_model: Path, arguments: list[str], sentence: str
) -> None:
    command = [*PROGRAM, "--model", str(tiny_model), "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert re.match(sentence, ended.stderr.splitlines()[-1]), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


# -- the end --------------------------------------------------------------------------------------------------------


def test_sigterm_lets_running_requests_finish_and_nobody_in(served: Served) -> None:
    url, engine = served.url, served.engine
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, url, 1000)
        wait_for(lambda: served.metric("switchgear_generated_tokens_total") > 5)
        served.process.send_signal(signal.SIGTERM)
        refused = wait_for(lambda: answer if (answer := httpx2.get(f"{url}/ready")).status_code == 503 else None)
        assert (refused.headers["connection"], refused.json()["error"]["code"]) == ("close", "shutting_down")
        assert httpx2.post(f"{url}/v1/completions", json=asked()).status_code == 503
        assert httpx2.get(f"{url}/health").status_code == 200
        assert not running.done()
        lines, _ = running.result(60)
    assert lines[-1] == "[DONE]"
    assert served.process.wait(10) == 0
    assert not is_alive(engine)


def test_what_does_not_finish_in_time_ends_with_the_reason(model: Path) -> None:
    with serving(model, "--served-model-name", "tiny", "--drain-seconds", "0.3") as served:
        url = served.url
        with ThreadPoolExecutor(2) as pool:
            streamed = pool.submit(stream, url, 4000)
            whole = pool.submit(httpx2.post, f"{url}/v1/completions", json=asked(max_tokens=4000), timeout=60)
            wait_for(lambda: served.metric("switchgear_requests_running") == 2)
            assert served.end() == 0
            lines, _ = streamed.result(10)
            assert "shutting down" in msgspec.json.decode(lines[-1])["error"]["message"]
            assert whole.result(10).status_code == 503


def test_a_second_signal_does_not_wait(served: Served) -> None:
    url, engine = served.url, served.engine
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, url, 4000)
        wait_for(lambda: served.metric("switchgear_requests_running") == 1)
        served.process.send_signal(signal.SIGINT)
        wait_for(lambda: httpx2.get(f"{url}/ready").status_code == 503)
        assert served.end(signal.SIGINT, 5.0) == 130
        lines, _ = running.result(10)
        assert "shutting down" in msgspec.json.decode(lines[-1])["error"]["message"]
    assert not is_alive(engine)
    assert not [line for line in served.log if "Traceback" in line or "rror" in line]


def test_a_signal_while_the_model_loads_ends_at_once(model: Path) -> None:
    served = Served(model)
    wait_for(lambda: served.engine)
    time.sleep(1.0)
    engine = served.engine
    assert served.end() in (0, -signal.SIGTERM)
    wait_for(lambda: not is_alive(engine), 5.0)


# -- the engine dies ------------------------------------------------------------------------------------------------


def test_an_engine_that_is_killed_fails_what_is_open_and_is_started_again(lasting: Served) -> None:
    url = lasting.url
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, url, 4000) for _ in range(3)]
        whole = pool.submit(httpx2.post, f"{url}/v1/completions", json=asked(max_tokens=4000), timeout=60)
        wait_for(lambda: lasting.metric("switchgear_requests_running") == 4)
        killed = time.monotonic()
        os.kill(lasting.engine, signal.SIGKILL)
        for streamed in streams:
            lines, ended = streamed.result(10)
            assert ended - killed < SECONDS_TO_HEAR
            error = msgspec.json.decode(lines[-1])["error"]
            assert (error["type"], error["code"]) == ("server_error", "engine_down")
            assert "killed (signal 9)" in error["message"]
        answer = whole.result(10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_down")
        assert "retry-after" in answer.headers
    assert httpx2.get(f"{url}/ready").status_code == 503
    assert "killed (signal 9)" in httpx2.post(f"{url}/v1/completions", json=asked()).json()["error"]["message"]
    wait_for(lambda: httpx2.get(f"{url}/ready").status_code == 200)
    assert httpx2.post(f"{url}/v1/completions", json=asked(max_tokens=2)).status_code == 200
    assert lasting.metric("switchgear_engine_restarts_total") == 1


def test_an_engine_that_keeps_dying_ends_the_server_with_the_cause(model: Path) -> None:
    with serving(model, "--set", "server.max_restarts=0") as served:
        assert served.url
        os.kill(served.engine, signal.SIGKILL)
        assert served.process.wait(10) == 1
        wait_for(lambda: [line for line in served.log if line.startswith("error: ") and "signal 9" in line])


def test_a_gateway_that_is_killed_leaves_no_engine_behind(served: Served) -> None:
    url, engine = served.url, served.engine
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, url, 4000)
        wait_for(lambda: served.metric("switchgear_requests_running") == 1)
        served.end(signal.SIGKILL)
        wait_for(lambda: not is_alive(engine), 5.0)
        assert running.exception(10)
