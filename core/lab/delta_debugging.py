"""The smallest part of a set that still makes something happen: ddmin.

Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (IEEE TSE 28(2), 2002), section 3. What it
finds is 1-minimal: without any one of its members it no longer happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TypeVar

T = TypeVar("T")


def ddmin(members: Sequence[T], happens: Callable[[Sequence[T]], bool]) -> list[T]:
    """members: for which it happens; happens: asked of parts of them, in order, never of none."""
    kept = list(members)
    num_parts = 2
    while len(kept) > 1:
        parts = split(kept, num_parts)
        part = next((part for part in parts if happens(part)), None)
        if part is not None:
            kept, num_parts = part, 2
            continue
        # of two parts each is the other's complement
        rests = (
            [list(chain(*parts[:place], *parts[place + 1 :])) for place in range(len(parts))] if num_parts > 2 else []
        )
        rest = next((rest for rest in rests if happens(rest)), None)
        if rest is not None:
            kept, num_parts = rest, max(num_parts - 1, 2)
        elif num_parts == len(kept):
            break
        else:
            num_parts = min(2 * num_parts, len(kept))
    return kept


def split(members: Sequence[T], num_parts: int) -> list[list[T]]:
    """Parts of nearly equal size, none of them empty."""
    count = len(members)
    bounds = [place * count // num_parts for place in range(num_parts + 1)]
    return [list(members[start:end]) for start, end in pairwise(bounds) if end > start]
