"""This machine's two numbers: how fast all threads together read memory, and how fast they multiply matrices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from .work import Work

MATRIX_SIZES = (1024, 2048, 3072)
"""Square products; from the first on, a product is large enough for the machine to be at its best."""
SECONDS_EACH = 0.4
"""How long one way of reading or one product is tried; the fastest time counts."""
MIN_FAR_BYTES = 2**29
FAR_CACHES = 4
"""A buffer of so many times the largest cache is read from memory, whatever the cache keeps."""

Bound = Literal["memory", "matrix"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What no step can beat."""

    bytes_per_s: float
    flops_per_s: float

    def seconds(self, work: Work) -> float:
        """The least time for the work, its reading and its arithmetic at the same time."""
        return max(work.num_bytes / self.bytes_per_s, work.num_flops / self.flops_per_s)

    def bound(self, work: Work) -> Bound:
        """Which of the two the work waits for."""
        return "memory" if work.num_bytes / self.bytes_per_s > work.num_flops / self.flops_per_s else "matrix"


def read_bytes_per_s(num_bytes: int) -> float:
    """Reading a buffer of so many bytes over and over, with all threads of torch.

    No way of reading is the fastest on every machine, so there are three: the norm, a product with a vector, and the
    largest element.
    """
    num_columns = 1024
    buffer = torch.ones(num_bytes // (4 * num_columns) * num_columns)
    matrix, vector, whole = buffer.view(-1, num_columns), torch.ones(num_columns), buffer.view(torch.int32)
    readers = (
        lambda: torch.linalg.vector_norm(buffer),
        lambda: torch.mv(matrix, vector),
        lambda: whole.amax(),
    )
    return buffer.nbytes / min(map(least_seconds, readers))


def matrix_flops_per_s(dtype: torch.dtype) -> float:
    """The fastest large product in this dtype."""
    return max(square_flops_per_s(size, dtype) for size in MATRIX_SIZES)


def square_flops_per_s(size: int, dtype: torch.dtype) -> float:
    left, right = (torch.ones(size, size, dtype=dtype) for _ in range(2))
    return 2 * size**3 / least_seconds(lambda: torch.nn.functional.linear(left, right))


def least_seconds(call: Callable[[], object]) -> float:
    """Of many calls, the second one at the earliest."""
    call()
    end = time.perf_counter() + SECONDS_EACH
    least = float("inf")
    while True:
        start = time.perf_counter()
        call()
        stop = time.perf_counter()
        least = min(least, stop - start)
        if stop > end:
            return least


def far_bytes(cache_bytes: int, memory_bytes: int) -> int:
    """Size of a buffer that no cache holds a useful part of, if memory has the room."""
    return min(max(MIN_FAR_BYTES, FAR_CACHES * cache_bytes), memory_bytes // 8)
