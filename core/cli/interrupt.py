"""Ctrl-C that ends a measurement without losing it: the first asks it to stop, the second ends the command."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """While it is entered, the first SIGINT sets `is_set` and gives the second back its usual meaning."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> bool:
        return self.is_set

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(signal.SIGINT, self._before)

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
