"""An HTTP/1.1 client that costs little: plain asyncio streams, so that it is the server that is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError

MAX_LINE = 2**20
"""Bytes of a head or of a line that gives the size of a chunk."""
CONNECT_SECONDS = 30.0


class BrokenAnswer(Exception):
    """What came is no HTTP, or ended too early."""


FAILURES = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, BrokenAnswer)
"""What a request may end with that is the network's or the server's fault."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    is_secure: bool
    path: str
    """What comes before `/v1`, without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> Address:
        """From a base URL, with or without `/v1` at its end. Raises ConfigError."""
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"cannot read the URL {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ConfigError(f"cannot read the URL {url!r}: it must look like http://HOST:PORT or https://HOST/v1")
        is_secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, port or (443 if is_secure else 80), is_secure, path)

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_secure else 80) else f"{host}:{self.port}"


@dataclass(slots=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""


@dataclass(slots=True)
class HttpClient:
    """Connections to one server, each of which carries one request after the other. Used in one event loop."""

    address: Address
    api_key: str = field(default="", repr=False)
    _idle: list[Connection] = field(default_factory=list)

    async def request(self, method: str, path: str, body: Any = None) -> tuple[Head, bytes]:
        """A whole answer. Raises one of FAILURES."""
        data = bytearray()
        head = await self.stream(method, path, body, data.extend)
        return head, bytes(data)

    async def stream(self, method: str, path: str, body: Any, take: Callable[[bytes], None]) -> Head:
        """Hand the answer's body over piece by piece as it comes. Raises one of FAILURES."""
        message = self._message(method, path, body)
        while True:
            is_new = not self._idle
            connection = self._idle.pop() if self._idle else await Connection.open(self.address)
            try:
                head = await connection.send(message)
                break
            except FAILURES:
                connection.close()
                # a server may end a connection that was idle; what is sent on a new one is not sent twice
                if is_new:
                    raise
            except BaseException:
                connection.close()
                raise
        try:
            async for piece in connection.body(head):
                take(piece)
        except BaseException:
            connection.close()
            raise
        if connection.may_stay(head):
            self._idle.append(connection)
        else:
            connection.close()
        return head

    def _message(self, method: str, path: str, body: Any) -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {self.address.path}{path} HTTP/1.1",
            f"host: {self.address.host_header}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            "accept-encoding: identity",
        ]
        if self.api_key:
            lines.append(f"authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + data

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: Address) -> Connection:
        context = ssl.create_default_context() if address.is_secure else None
        opening = asyncio.open_connection(address.host, address.port, ssl=context, limit=MAX_LINE)
        return cls(*await asyncio.wait_for(opening, CONNECT_SECONDS))

    async def send(self, message: bytes) -> Head:
        self.writer.write(message)
        await self.writer.drain()
        while True:
            text = await self.reader.readuntil(b"\r\n\r\n")
            head = parse_head(text)
            if head.status >= 200:
                return head

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """What comes after the head, as it comes."""
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := chunk_size(await self.reader.readuntil(b"\r\n")):
                yield (await self.reader.readexactly(size + 2))[:-2]
            while await self.reader.readuntil(b"\r\n") != b"\r\n":
                pass
        elif (length := head.headers.get("content-length")) is not None:
            if not length.isdecimal():
                raise BrokenAnswer(f"the answer has a content-length of {length!r}")
            yield await self.reader.readexactly(int(length))
        elif head.status not in (204, 304):
            while piece := await self.reader.read(MAX_LINE):
                yield piece

    def may_stay(self, head: Head) -> bool:
        """Whether another request can follow this answer."""
        is_bounded = {"transfer-encoding", "content-length"} & head.headers.keys()
        return bool(is_bounded) and head.headers.get("connection", "").lower() != "close"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.writer.close()


def parse_head(text: bytes) -> Head:
    first, *lines = text.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        raise BrokenAnswer(f"the answer begins with {first[:40]!r}, which is no HTTP")
    fields = (line.partition(":") for line in lines if line)
    return Head(int(words[1]), {name.strip().lower(): value.strip() for name, _, value in fields})


def chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";", 1)[0], 16)
    except ValueError:
        raise BrokenAnswer(f"a chunk of the answer has the size {line[:20]!r}") from None


def told(failure: BaseException) -> str:
    """One sentence of one of FAILURES."""
    match failure:
        case TimeoutError():
            return "the server did not answer in time"
        case asyncio.IncompleteReadError() | asyncio.LimitOverrunError():
            return "the server ended the connection in the middle of an answer"
    return str(failure) or type(failure).__name__
