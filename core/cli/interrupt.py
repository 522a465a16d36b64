"""Ctrl-C that loses nothing: the first asks whoever works to stop, the second ends the command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C is noted instead of raised, so that it cannot tear a step; a second one is raised."""
    is_noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal is_noted
        is_noted = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: is_noted
    finally:
        signal.signal(signal.SIGINT, before)
