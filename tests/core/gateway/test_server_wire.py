"""What goes over the wire, byte by byte where it matters, from a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from switchgear.core.cli.main import main

from .served import Served, serving

LIMIT = 200_000


@pytest.fixture(scope="module")
def served(tiny_model: Path) -> Iterator[Served]:
    options = ("--served-model-name", "tiny", "--max-body-bytes", str(LIMIT), "--max-prompt-characters", "150000")
    with serving(tiny_model, *options) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[httpx2.Client]:
    with served.client() as client:
        yield client


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "The switch", "max_tokens": 4, **fields}


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error object, which has all four keys whatever went wrong."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.headers["x-switchgear-plan"]
    return error


def test_a_stream_is_data_lines_and_ends_with_done(client: httpx2.Client) -> None:
    response = client.post("/v1/completions", json=completion(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] and response.headers["x-switchgear-plan"]
    *events, done, end = response.content.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    assert b"\r" not in response.content and b"\nid:" not in response.content
    for event in events:
        assert event.startswith(b'data: {"id":"cmpl-')


def test_without_the_clients_word_no_chunk_counts_tokens(client: httpx2.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}
    chunks = [line[6:] for line in client.post("/v1/chat/completions", json=body).text.split("\n\n") if "{" in line]
    decoded = [msgspec.json.decode(chunk) for chunk in chunks]
    assert all(chunk["choices"] for chunk in decoded)
    assert [("role" in chunk["choices"][0]["delta"]) for chunk in decoded] == [True] + [False] * (len(decoded) - 1)


@pytest.mark.parametrize("path", ["/", "/v1/chat/completion", "/v1/completions/", "/admin/x"])
def test_an_unknown_path_is_an_error_object(client: httpx2.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert path in error_of(response)["message"]


def test_a_wrong_method_is_an_error_object(client: httpx2.Client) -> None:
    response = client.put("/v1/completions", json={})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    error_of(response)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": "tiny"}', b"[" * 100_000, b'{"a":' * 30_000, b"null"]
)
def test_a_body_that_is_none_is_400(client: httpx2.Client, body: bytes) -> None:
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.headers["x-should-retry"] == "false"
    error_of(response)


def test_a_lone_surrogate_is_400(client: httpx2.Client) -> None:
    response = client.post("/v1/completions", content=b'{"model":"tiny","prompt":"\\ud800"}')
    assert response.status_code == 400
    error_of(response)


def test_a_body_that_is_too_long_is_413_and_the_connection_goes_on(served: Served, client: httpx2.Client) -> None:
    before = served.metric("process_resident_memory_bytes")
    body = b" " * (10 * 2**20)
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 413
    assert "200000 bytes" in error_of(response)["message"]
    assert client.post("/v1/completions", json=completion()).status_code == 200
    assert served.metric("process_resident_memory_bytes") - before < 5 * 2**20


def test_a_body_of_unknown_length_is_limited_as_well(client: httpx2.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(LIMIT // 10_000 + 5):
            yield b" " * 10_000

    response = client.post("/v1/completions", content=parts())
    assert response.status_code == 413
    error_of(response)
    assert client.post("/v1/completions", json=completion()).status_code == 200


def test_a_prompt_that_is_too_long_to_read_is_refused_before_it_is_read(client: httpx2.Client) -> None:
    response = client.post("/v1/completions", json=completion(prompt="x" * 160_000))
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == ("prompt", "context_length_exceeded")


def test_one_connection_serves_on_after_every_kind_of_answer(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    whole = msgspec.json.encode(completion())
    streamed = msgspec.json.encode(completion(stream=True))
    with socket.create_connection((host, int(port)), timeout=30) as line, line.makefile("rb") as answers:
        for method, path, body in (
            ("GET", "/nowhere", b""),
            ("POST", "/v1/completions", b"{"),
            ("POST", "/v1/completions", whole),
            ("POST", "/v1/completions", streamed),
            ("GET", "/health", b""),
        ):
            head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            line.sendall(head.encode() + body)
            status = answers.readline()
            headers = dict(header.decode().strip().lower().split(": ") for header in iter(answers.readline, b"\r\n"))
            assert headers.get("connection") != "close", status
            if "content-length" in headers:
                answers.read(int(headers["content-length"]))
            else:
                while size := int(answers.readline(), 16):
                    answers.read(size + 2)
                answers.readline()


def test_a_client_may_ask_before_it_sends(served: Served) -> None:
    """curl does so for a longer body, and is told to go on; or at once that the body is too long."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    for size, expected in ((1000, b"100"), (LIMIT + 1, b"413")):
        with socket.create_connection((host, int(port)), timeout=30) as line, line.makefile("rb") as answers:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\nexpect: 100-continue\r\n\r\n"
            line.sendall(head.encode())
            assert answers.readline().split()[1] == expected


def test_tokens_and_text_are_each_others_inverse(client: httpx2.Client) -> None:
    answer = client.post("/tokenize", json={"prompt": "The switch", "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "The switch"}
    long = client.post("/tokenize", json={"prompt": "switch " * 15_000}).json()
    assert long["count"] > 15_000


def test_the_state_of_the_server_is_told(served: Served, client: httpx2.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    plan = client.get("/plan")
    assert plan.json()["hash"] == plan.headers["x-switchgear-plan"]
    assert {"hooks", "plugins", "environment"} <= plan.json().keys()
    assert client.head("/health").content == b""


def test_the_document_names_every_route_and_no_other(client: httpx2.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        probe = path.replace("{model}", "tiny").replace("{plugin}", "x").replace("{command}", "y")
        for method in operations.keys() & {"get", "post"}:
            response = client.request(method, probe, content=b"{}" if method == "post" else None)
            message = response.json()["error"]["message"] if response.status_code == 404 else ""
            assert response.status_code != 405 and "There is nothing at" not in message, path


def test_metrics_count_what_was_served(served: Served, client: httpx2.Client) -> None:
    ended = 'switchgear_requests_total{endpoint="completions",status="200"}'
    names = (ended, "switchgear_generated_tokens_total", "switchgear_time_to_first_token_seconds_count")
    before = [served.metric(name) for name in names]
    client.post("/v1/completions", json=completion(n=2, ignore_eos=True))
    assert [served.metric(name) for name in names] == [before[0] + 1, before[1] + 8, before[2] + 1]
    page = client.get("/metrics").text
    for name in ("requests_running", "requests_waiting", "kv_usage", "effective_batch_size", "preemptions_total"):
        assert f"\nswitchgear_{name} " in page
    assert 'switchgear_plugin{name="queries",plugin="prefix_cache"}' in page
    assert f'hash="{client.get("/plan").json()["hash"]}"' in page


def test_a_plugins_command_is_run(client: httpx2.Client) -> None:
    response = client.post("/admin/prefix_cache/reset")
    assert response.status_code == 200
    unknown = client.post("/admin/prefix_cache/explode", json={})
    assert unknown.status_code == 404
    assert "valid are" in error_of(unknown)["message"]
    for body in (b"[]", b"{", b'{"n": 999999999999999999999999}'):
        assert client.post("/admin/prefix_cache/reset", content=body).status_code == 400
    unwanted = client.post("/admin/prefix_cache/reset", json={"colour": "red"})
    assert unwanted.status_code == 400
    assert "'colour'): it takes " in error_of(unwanted)["message"]


def test_the_admin_command_runs_it_too(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "prefix_cache", "reset", "--url", served.url]) == 0
    msgspec.json.decode(capsys.readouterr().out)
    assert main(["admin", "prefix_cache", "explode", "--url", f"{served.url}/"]) == 1
    assert "unknown command" in capsys.readouterr().err


def test_a_page_in_a_browser_may_run_no_command(client: httpx2.Client) -> None:
    response = client.post("/admin/prefix_cache/reset", headers={"origin": "https://example.org"})
    assert response.status_code == 403
    error_of(response)


def test_many_at_once_get_what_each_gets_alone(served: Served) -> None:
    """Sixty-four clients over as many connections, seeded, streamed and whole."""
    bodies = [completion(seed=number, prompt=f"Number {number}", max_tokens=6) for number in range(64)]
    with served.client() as client:
        alone = [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies[:8]]
    barrier = threading.Barrier(64)

    def ask(body: dict[str, Any]) -> str:
        with served.client() as client:
            barrier.wait(30)
            return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(ask, bodies))
    assert texts[:8] == alone
    assert served.metric("switchgear_requests_running") == 0
