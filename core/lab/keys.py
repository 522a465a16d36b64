"""Keys of segments: what is to be the same gets the same key, everything else another."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from .workload import Workload

NUM_BYTES = 7
"""Of a key: it stays a small integer wherever it is written down."""


def key_of(*names: str | int) -> int:
    """One of 2^56 keys, the same for the same names."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, names)).encode()).digest()[:NUM_BYTES], "big")


def with_fresh_tokens(workload: Workload, number: int) -> Workload:
    """The same lengths and the same sharing among its requests, with tokens that no other `number` has. Texts stay."""
    if number == 0:
        return workload
    asks = [
        replace(
            ask, segments=tuple(replace(segment, key=key_of("fresh", number, segment.key)) for segment in ask.segments)
        )
        for ask in workload.asks
    ]
    return replace(workload, asks=tuple(asks), about={**workload.about, "tokens": number})
