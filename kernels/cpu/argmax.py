"""The most likely token of each row of logits, in one pass over the vocabulary."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "argmax"


def argmax(x: torch.Tensor) -> torch.Tensor:
    """As the reference: x `[L, V]`, float32 or float64, with dense rows; `[L]` int64."""
    library = native()
    num_rows, size = x.shape
    assert x.dtype in (torch.float32, torch.float64) and x.stride(1) == 1 and size
    out = torch.empty(num_rows, dtype=torch.int64)
    library.functions.switchgear_argmax(
        x.data_ptr(),
        x.stride(0),
        out.data_ptr(),
        num_rows,
        size,
        ELEMENTS[x.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return out
