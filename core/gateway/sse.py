"""Server-sent events as OpenAI sends them: `data: {json}`, LF only, no event names and no ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from starlette.types import Send

from .openai.errors import ApiError

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE = b"[DONE]"
COMMENT = b": keepalive\n\n"
"""Safe for every client as long as no event has an id: with one, some take the blank line for an empty event."""


class EventStream:
    """One answer as events. Nothing is sent, and so any status can still be answered, before the first `write`.

    opening: makes the payloads of what comes before that. keepalive_seconds: a comment is sent after so long a
    silence; 0 for never. `stop` it, whatever happened; without an `end` the client sees that something is missing.
    """

    def __init__(self, send: Send, opening: Callable[[], Iterable[bytes]], keepalive_seconds: float) -> None:
        self._send = send
        self._opening = opening
        self._keepalive_seconds = keepalive_seconds
        self._lock = asyncio.Lock()
        """Several outputs of one call write at once."""
        self._keepalive: asyncio.Task[None] | None = None
        self._last_write = 0.0
        self.has_begun = False

    async def write(self, payloads: Iterable[bytes]) -> None:
        """Send one event for each payload. Waits while the client reads too slowly."""
        await self._write(events_of(payloads))

    async def write_error(self, error: ApiError) -> None:
        """Say that there will be no more, and why."""
        await self.write([msgspec.json.encode(error.body())])

    async def end(self) -> None:
        """Nothing more will come, and nothing is missing."""
        self.stop()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def stop(self) -> None:
        """No more comments. Safe to repeat."""
        if self._keepalive is not None:
            self._keepalive.cancel()

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            if not self.has_begun:
                self.has_begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
                data = events_of(self._opening()) + data
                if self._keepalive_seconds:
                    # a first write that waits for the client is no silence since the clock began
                    self._last_write = asyncio.get_running_loop().time()
                    self._keepalive = asyncio.ensure_future(self._keep_alive())
            if data:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
                self._last_write = asyncio.get_running_loop().time()

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            silence = clock() - self._last_write
            if silence >= self._keepalive_seconds:
                await self._write(COMMENT)
            else:
                await asyncio.sleep(self._keepalive_seconds - silence)


def events_of(payloads: Iterable[bytes]) -> bytes:
    return b"".join(b"data: %s\n\n" % payload for payload in payloads)
