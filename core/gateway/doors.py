"""Who may come in: a limit on open requests, measured waiting times for those turned away, and doors that close."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .ask import Ask
from .openai.errors import ApiError, bad_request, too_many, unavailable

MEMORY_SECONDS = 30.0
"""How fast requests are served is measured over about so long."""
UNKNOWN_WAIT = 5.0
"""Seconds that a client is told to wait while nothing has been measured."""


class ServiceRate:
    """How many requests end in a second, with what is long ago weighing less."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = self._last = clock()
        self._weight = 0.0

    def count(self) -> None:
        self._fade()
        self._weight += 1.0

    def per_second(self) -> float:
        """0 as long as nothing has ended."""
        self._fade()
        # before the memory is full, the time that was measured is shorter than it
        span = MEMORY_SECONDS * -math.expm1(-(self._last - self._begin) / MEMORY_SECONDS)
        return self._weight / span if span > 0 else 0.0

    def _fade(self) -> None:
        now = self._clock()
        self._weight *= math.exp((self._last - now) / MEMORY_SECONDS)
        self._last = now


class Doors:
    """Counts who is inside. why_not: a sentence where nobody can be served now, else nothing."""

    def __init__(
        self,
        max_open: int,
        max_characters: int,
        why_not: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_open = max_open
        self.max_characters = max_characters
        self.why_not = why_not
        self.is_closing = False
        self.num_open = 0
        self.num_reading = 0
        self._num_refused = 0
        """Since somebody left: each of them waits for one more to leave."""
        self._rate = ServiceRate(clock)
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def check(self) -> None:
        """Raise ApiError where nobody can be served now."""
        if self.is_closing:
            raise closing()
        if reason := self.why_not():
            raise unavailable(reason, "engine_not_ready")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """For as long as a request is served. Raises ApiError for one too many, with the time to come again."""
        self.check()
        if self.num_open >= self.max_open:
            self._num_refused += 1
            raise too_many(
                f"This server is at its limit of {self.max_open} open requests; try again later.", self._wait()
            )
        self.num_open += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            self._num_refused = 0
            self._rate.count()
            if self.num_open == 0:
                self._is_empty.set()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For as long as a body is read. They take memory, so that no more are read than may be inside."""
        if self.num_reading >= self.max_open:
            raise too_many(f"This server reads {self.max_open} requests at once; try again later.")
        self.num_reading += 1
        try:
            yield
        finally:
            self.num_reading -= 1

    def _wait(self) -> float:
        """Seconds until as many have left as were refused since the last one left."""
        rate = self._rate.per_second()
        return self._num_refused / rate if rate else UNKNOWN_WAIT

    def check_prompts(self, asks: Iterable[Ask], field: str) -> None:
        """Raise ApiError for prompts that are too long to even be read. field: where the body has them."""
        size = sum(ask.size for ask in asks)
        if size > self.max_characters:
            text = f"`{field}` has {size} characters or token ids, and this server takes {self.max_characters} at most"
            raise bad_request(f"{text}; send less.", field, "context_length_exceeded")

    def close(self) -> None:
        """Let nobody in from now on."""
        self.is_closing = True

    async def empty(self) -> None:
        """Return when nobody is inside."""
        await self._is_empty.wait()


def closing() -> ApiError:
    error = unavailable("The server is shutting down; try another one.", "shutting_down")
    return ApiError(
        error.status, error.message, error.type, error.param, error.code, {**error.headers, "connection": "close"}
    )
