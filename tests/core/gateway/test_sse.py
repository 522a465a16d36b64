from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from starlette.types import Message
from switchgear.core.gateway.openai.errors import unavailable
from switchgear.core.gateway.sse import DONE, EventStream


class Line:
    """What was sent over one connection."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)  # as where a client has to be waited for
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def streamed(
    act: Callable[[EventStream], Coroutine[Any, Any, None]], keepalive: float = 0.0, opening: tuple[bytes, ...] = ()
) -> Line:
    """What is sent when `act` writes to a stream."""
    line = Line()

    async def run() -> None:
        events = EventStream(line.send, lambda: opening, keepalive)
        try:
            await act(events)
            if events.has_begun:
                await events.end()
        finally:
            events.stop()

    asyncio.run(run())
    return line


def test_events_are_data_lines_with_a_blank_line_between() -> None:
    async def act(events: EventStream) -> None:
        await events.write([b'{"a":1}', b'{"b":2}'])
        await events.write([DONE])

    line = streamed(act, opening=(b'{"role":"assistant"}',))
    assert line.body == b'data: {"role":"assistant"}\n\ndata: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
    start, *bodies = line.messages
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }
    assert [body["more_body"] for body in bodies] == [True, True, False]


def test_nothing_is_sent_before_the_first_event() -> None:
    async def act(events: EventStream) -> None:
        assert not events.has_begun

    assert streamed(act, keepalive=0.001).messages == []


def test_a_token_without_text_yet_begins_the_answer() -> None:
    async def act(events: EventStream) -> None:
        await events.write([])

    line = streamed(act)
    assert [message["type"] for message in line.messages] == ["http.response.start", "http.response.body"]


def test_an_error_is_an_event_with_all_four_keys_and_nothing_after_it() -> None:
    async def act(events: EventStream) -> None:
        await events.write([b"{}"])
        await events.write_error(unavailable("the engine died", "engine_down"))

    last = streamed(act).body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    assert msgspec.json.decode(last.removeprefix(b"data: ")) == {
        "error": {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_down"}
    }


def test_a_first_write_that_is_waited_for_is_no_silence() -> None:
    async def act(events: EventStream) -> None:
        for _ in range(3):
            await events.write([b"{}"])

    assert streamed(act, keepalive=1.0).body == 3 * b"data: {}\n\n"


def test_a_silent_stream_sends_comments_and_never_an_id() -> None:
    async def act(events: EventStream) -> None:
        await events.write([b"{}"])
        await asyncio.sleep(0.2)
        await events.write([DONE])

    body = streamed(act, keepalive=0.05).body
    assert body.startswith(b"data: {}\n\n: keepalive\n\n")
    assert body.endswith(b": keepalive\n\ndata: [DONE]\n\n")
    assert b"id:" not in body and b"\r" not in body


def test_comments_stop_with_the_stream() -> None:
    line = Line()

    async def run() -> None:
        events = EventStream(line.send, tuple, 0.01)
        await events.write([b"{}"])
        events.stop()
        num_messages = len(line.messages)
        await asyncio.sleep(0.05)
        assert len(line.messages) == num_messages

    asyncio.run(run())


def test_events_that_are_written_at_once_do_not_mix() -> None:
    line = Line()

    async def slow_send(message: Message) -> None:
        await asyncio.sleep(0)
        await line.send(message)

    async def run() -> None:
        events = EventStream(slow_send, lambda: [b"first"], 0.0)
        await asyncio.gather(*(events.write([b"%d" % number]) for number in range(5)))
        await events.end()

    asyncio.run(run())
    assert line.body == b"".join(b"data: %s\n\n" % part for part in (b"first", b"0", b"1", b"2", b"3", b"4"))
