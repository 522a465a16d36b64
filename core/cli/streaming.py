"""Following an answer while it is made, and stopping it with Ctrl-C between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gateway.results import Chunk, Result


def follow(chunks: Generator[Chunk], show: Callable[[str], None]) -> Result | None:
    """Give `show` each piece of text as it comes, and return the result; None if Ctrl-C aborted the request."""
    with interrupts() as is_interrupted, closing(chunks):
        for chunk in chunks:
            show(chunk.text)
            if chunk.result is not None:
                return chunk.result
            if is_interrupted():
                break
    return None


def show_at_once(text: str) -> None:
    print(text, end="", flush=True)


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
