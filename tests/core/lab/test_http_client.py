import asyncio
from collections.abc import Awaitable, Callable

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.http_client import FAILURES, Address, Head, HttpClient, told

from .scripted_server import Answer, Asked, serving


def ask(answer: Answer, use: Callable[[HttpClient], Awaitable[object]]) -> None:
    async def run() -> None:
        async with serving(answer) as url:
            client = HttpClient(Address.of(url), "secret")
            try:
                await use(client)
            finally:
                client.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:8000", Address("host", 8000, False, "")),
        ("http://host:8000/v1/", Address("host", 8000, False, "")),
        ("host:8000", Address("host", 8000, False, "")),
        ("https://api.example.com/v1", Address("api.example.com", 443, True, "")),
        ("http://[::1]/openai/v1", Address("::1", 80, False, "/openai")),
    ],
)
def test_a_url_is_read_with_or_without_its_end(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://host:port", "http://host/v1?x=1", "http://h:99999"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the URL"):
        Address.of(url)


def test_the_host_header_has_the_port_where_it_is_not_the_usual_one() -> None:
    assert Address.of("http://[::1]:81").host_header == "[::1]:81"
    assert Address.of("https://host").host_header == "host"


def test_a_request_carries_its_body_and_its_key() -> None:
    async def answer(asked: Asked) -> None:
        key = asked.headers["authorization"]
        await asked.whole(200, {"method": asked.method, "path": asked.path, "body": asked.body, "key": key})

    async def use(client: HttpClient) -> None:
        head, body = await client.request("POST", "/v1/x", {"a": [1]})
        assert head.status == 200
        assert body == b'{"method": "POST", "path": "/v1/x", "body": {"a": [1]}, "key": "bearer secret"}'

    ask(answer, use)


def test_pieces_come_as_they_are_sent_and_connections_stay() -> None:
    seen = []

    async def answer(asked: Asked) -> None:
        seen.append(asked.connection)
        await asked.begin_stream()
        for piece in (b"one", b"two\r\n", b"x" * 70_000):
            await asked.piece(piece)
        await asked.end_stream()

    async def use(client: HttpClient) -> None:
        for _ in range(2):
            pieces: list[bytes] = []
            assert (await client.stream("GET", "/", None, pieces.append)).status == 200
            assert pieces == [b"one", b"two\r\n", b"x" * 70_000]

    ask(answer, use)
    assert seen == [1, 1]


def test_requests_at_once_have_a_connection_each() -> None:
    inside = 0

    async def answer(asked: Asked) -> None:
        nonlocal inside
        inside += 1
        while inside < 3:
            await asyncio.sleep(0.001)
        await asked.whole(200, str(asked.connection).encode())

    async def use(client: HttpClient) -> None:
        answers = await asyncio.gather(*(client.request("GET", "/") for _ in range(3)))
        assert {body for _, body in answers} == {b"1", b"2", b"3"}

    ask(answer, use)


def test_an_idle_connection_that_the_server_ended_is_replaced() -> None:
    async def answer(asked: Asked) -> None:
        if asked.path == "/cut" or (asked.connection == 1 and asked.path == "/again"):
            raise ConnectionAbortedError
        await asked.whole(200, str(asked.connection).encode())

    async def use(client: HttpClient) -> None:
        assert (await client.request("GET", "/"))[1] == b"1"
        assert (await client.request("GET", "/again"))[1] == b"2"
        with pytest.raises(FAILURES):
            await client.request("GET", "/cut")

    ask(answer, use)


def test_bodies_without_a_length_end_with_the_connection() -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it")
        raise ConnectionAbortedError

    async def use(client: HttpClient) -> None:
        assert (await client.request("GET", "/"))[1] == b"all of it"
        assert client._idle == []

    ask(answer, use)


@pytest.mark.parametrize(
    "answered",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
        b"",
    ],
)
def test_a_broken_answer_is_a_failure_in_one_sentence(answered: bytes) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(answered)
        raise ConnectionAbortedError

    async def use(client: HttpClient) -> None:
        with pytest.raises(FAILURES) as raised:
            await client.request("GET", "/")
        sentence = told(raised.value)
        assert sentence and "\n" not in sentence
        assert client._idle == []

    ask(answer, use)


def test_what_is_said_before_the_answer_is_passed_over() -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await asked.whole(200, b"ok", "X-Some-Header: Value\r\n")

    async def use(client: HttpClient) -> None:
        head, body = await client.request("GET", "/")
        assert isinstance(head, Head) and head.headers["x-some-header"] == "Value" and body == b"ok"

    ask(answer, use)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(HttpClient(Address.of("http://host"), "secret"))
