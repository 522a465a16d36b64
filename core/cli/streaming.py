"""Following an answer while it is made, and stopping it with Ctrl-C between two steps."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from .interrupt import interrupts

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
