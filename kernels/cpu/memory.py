"""Memory in large pages for weights, all of which a step reads: with small ones half its time is looking pages up."""

from __future__ import annotations

import mmap

import torch

LARGE_PAGE = 2 << 20
CHUNK = 64 << 20
"""Bytes of address space that are asked for at once; memory is only taken where something is written."""
LINE = 64
"""Bytes of a cache line, which every piece starts at."""


class Arena:
    """Hands out pieces one behind the other. A chunk is given back when the last piece of it is gone."""

    def __init__(self) -> None:
        self.left = torch.empty(0, dtype=torch.uint8)
        """What nobody has taken of the newest chunk."""

    def take(self, num_bytes: int) -> torch.Tensor:
        """`[num_bytes]` uint8, zeros."""
        needed = -(-num_bytes // LINE) * LINE
        if needed > len(self.left):
            self.left = chunk(max(CHUNK, needed))
        piece, self.left = self.left[:num_bytes], self.left[needed:]
        return piece


def chunk(num_bytes: int) -> torch.Tensor:
    """Zeros that start at a large page, which the system is asked to use; it may have none."""
    memory = mmap.mmap(-1, num_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % LARGE_PAGE
    return whole[start : start + num_bytes]
