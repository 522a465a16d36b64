"""A client that leaves frees its request, whatever the request was doing. One sequence at a time, so that it shows."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from switchgear.core.testing.tiny import make_tiny_model

from .served import Served, serving, wait_for

PATIENCE = 10.0
"""Seconds within which a request is gone; a quiet machine takes a fiftieth of it, and its answer takes longer."""
LEFT = "switchgear_client_disconnects_total"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"prompt": "Hi"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = make_tiny_model(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)
    with serving(model, "--served-model-name", "tiny", "--set", "engine.max_num_seqs=1") as served:
        yield served


@pytest.fixture(autouse=True)
def nothing_stays_behind(served: Served) -> Iterator[None]:
    """Each test begins and ends with an engine that has nothing to do."""
    yield
    assert num_inside(served) == 0
    assert served.metric("switchgear_kv_usage") == 0
    assert served.metric("switchgear_requests_open") == 0
    assert httpx2.post(f"{served.url}/admin/core/audit").json() == []


def num_inside(served: Served) -> float:
    return sum(served.metric(f"switchgear_requests_{state}") for state in ("running", "waiting", "held"))


class Asking:
    """A request for a very long answer, over a connection of its own."""

    def __init__(self, served: Served, path: str, **fields: Any) -> None:
        body = msgspec.json.encode({"model": "tiny", "max_tokens": 4000, "ignore_eos": True, **fields})
        host, _, port = served.url.removeprefix("http://").partition(":")
        self.line = socket.create_connection((host, int(port)), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self.line.sendall(head.encode() + body)

    def leave(self) -> None:
        self.line.close()


def is_gone(served: Served, num_left: float = 0) -> bool:
    return num_inside(served) == num_left


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("path", "fields"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_a_client_that_leaves_while_its_answer_is_made(
    served: Served, path: str, fields: dict[str, Any], is_streamed: bool
) -> None:
    phase = f'{LEFT}{{phase="after_first_token"}}'
    before, generated = served.metric(phase), served.metric("switchgear_generated_tokens_total")
    asking = Asking(served, path, stream=is_streamed, **fields)
    wait_for(lambda: served.metric("switchgear_generated_tokens_total") > generated + 5)
    asking.leave()
    wait_for(lambda: is_gone(served), PATIENCE)
    assert served.metric(phase) == before + 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {**COMPLETION, "stream": True}),
        ("/v1/completions", COMPLETION),
        ("/v1/embeddings", {"input": ["one", "two"]}),
    ],
)
def test_a_client_that_leaves_while_it_waits_for_its_turn(served: Served, path: str, fields: dict[str, Any]) -> None:
    running = Asking(served, "/v1/completions", prompt="x", stream=True)
    wait_for(lambda: served.metric("switchgear_requests_running") == 1)
    waiting = Asking(served, path, **fields)
    wait_for(lambda: served.metric("switchgear_requests_open") == 2)
    waiting.leave()
    wait_for(lambda: served.metric("switchgear_requests_open") == 1, PATIENCE)
    wait_for(lambda: served.metric("switchgear_requests_waiting") == 0, PATIENCE)
    assert served.metric("switchgear_requests_running") == 1
    running.leave()
    wait_for(lambda: is_gone(served), PATIENCE)


def test_a_client_that_leaves_several_prompts_and_outputs_behind(served: Served) -> None:
    asking = Asking(served, "/v1/completions", prompt=["a", "b", "c"], n=3, stream=True)
    wait_for(lambda: num_inside(served) >= 3)
    asking.leave()
    wait_for(lambda: is_gone(served), PATIENCE)


def test_a_client_that_leaves_while_its_prompt_is_tokenised(served: Served) -> None:
    asking = Asking(served, "/v1/completions", prompt="switch " * 100_000)
    asking.leave()
    wait_for(lambda: served.metric("switchgear_requests_open") == 0)


def test_a_client_that_sends_half_a_body_and_leaves(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"model":')
    assert httpx2.get(f"{served.url}/health").status_code == 200


def test_streams_that_are_opened_and_dropped_at_random_leave_nothing(served: Served) -> None:
    chance = random.Random(1)
    for _ in range(40):
        asking = Asking(served, "/v1/completions", prompt="x", stream=chance.random() < 0.5, n=chance.randint(1, 3))
        time.sleep(chance.random() * 0.05)
        asking.leave()
    wait_for(lambda: is_gone(served) and served.metric("switchgear_requests_open") == 0, 5.0)
    with served.client() as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
