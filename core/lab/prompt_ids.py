"""Which token ids random prompts are made of: the same in every process and for every target of one vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from .raw import END_ID, FIRST_ID


@dataclass(frozen=True, slots=True)
class IdRange:
    """From `first` on, below `end`."""

    first: int
    end: int


def id_range(vocab_size: int) -> IdRange:
    """As `bench raw` has it for a large vocabulary; of a smaller one what is past the first eighth, where the special
    tokens and the bytes are."""
    return IdRange(min(FIRST_ID, vocab_size // 8), min(END_ID, vocab_size))
