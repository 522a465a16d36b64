"""The k largest numbers of each row, such as the most likely tokens, in one pass over the vocabulary."""

from __future__ import annotations

import torch

from ...core.model import ops
from .elements import NUMBERS
from .library import native

REFERENCE = "top_k"

LARGEST_HEAP = 4096
"""Entries; for so many of a vocabulary of 49,152, torch's selection and sort are as quick."""


def top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference: x `[L, V]` with dense rows, to `[L, k]` twice. Of equals the first, where k <= LARGEST_HEAP."""
    num_rows, size = x.shape
    assert x.dtype in NUMBERS and x.stride(1) == 1 and 1 <= k <= size
    if k > LARGEST_HEAP:
        return ops.top_k(x, k)
    library = native()
    values = x.new_empty((num_rows, k))
    places = torch.empty((num_rows, k), dtype=torch.int64)
    library.functions.switchgear_top_k(
        x.data_ptr(),
        x.stride(0),
        values.data_ptr(),
        places.data_ptr(),
        num_rows,
        size,
        k,
        NUMBERS[x.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return values, places
