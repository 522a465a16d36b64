"""A client that costs little: HTTP/1.1 over plain asyncio streams, for load tests whose own share must be small."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Streamed:
    """What came of one streamed request. Times are readings of `time.perf_counter`."""

    status: int
    started: float
    token_times: list[float] = field(default_factory=list)
    """When each piece of text came."""
    finish_reason: str | None = None
    error: str = ""
    is_whole: bool = False
    """`[DONE]` was seen."""

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.started


class Connection:
    """One connection that is kept alive and carries one request after the other."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of a request that is not streamed."""
        status, headers = await self._send(method, path, body)
        if headers.get("transfer-encoding") == "chunked":
            return status, b"".join([chunk async for chunk in self._chunks()])
        assert self._reader is not None
        return status, await self._reader.readexactly(int(headers.get("content-length", 0)))

    async def stream(self, path: str, body: Mapping[str, Any], *, leave_after: int | None = None) -> Streamed:
        """A streamed completion, read to its end, or left after so many pieces; 0 leaves once it is sent."""
        started = time.perf_counter()
        if leave_after == 0:
            await self._write("POST", path, {**body, "stream": True})
            self.close()
            return Streamed(0, started)
        status, headers = await self._send("POST", path, {**body, "stream": True})
        result = Streamed(status, started)
        if status != 200:
            assert self._reader is not None
            result.error = (await self._reader.readexactly(int(headers.get("content-length", 0)))).decode()
            return result
        rest = b""
        async for chunk in self._chunks():
            *events, rest = (rest + chunk).split(b"\n\n")
            now = time.perf_counter()
            for event in events:
                take_event(result, event, now)
            if leave_after is not None and len(result.token_times) >= leave_after:
                self.close()
                break
        return result

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, str]]:
        await self._write(method, path, body)
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        return int(head[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def _write(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await self._writer.drain()

    async def _chunks(self) -> AsyncIterator[bytes]:
        assert self._reader is not None
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
        self._reader = self._writer = None


def take_event(result: Streamed, event: bytes, now: float) -> None:
    if not event.startswith(b"data: "):
        return
    if event == b"data: [DONE]":
        result.is_whole = True
        return
    data = json.loads(event[6:])
    if "error" in data:
        result.error = data["error"]["message"]
        return
    for choice in data["choices"]:
        text = choice.get("text") or choice.get("delta", {}).get("content")
        if text:
            result.token_times.append(now)
        result.finish_reason = choice.get("finish_reason") or result.finish_reason
