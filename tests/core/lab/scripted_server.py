"""A server of a few lines that answers as its test says, to the byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    """Number of the connection that it came through."""
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def whole(self, status: int, body: bytes | dict[str, Any], headers: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n{headers}\r\n".encode() + data)

    async def begin_stream(self, headers: str = "") -> None:
        await self.send(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{headers}\r\n".encode())

    async def piece(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, value: Any) -> None:
        await self.piece(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")


Answer = Callable[[Asked], Awaitable[None]]
"""Raises ConnectionAbortedError to cut the connection."""


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that answers like this."""
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        number = num_connections
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                data = await reader.readexactly(int(headers["content-length"]))
                method, path, _ = first.split()
                await answer(Asked(method, path, headers, json.loads(data) if data else None, number, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
