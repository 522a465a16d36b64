"""RMS norm of each row, with the addition of the residual in the same pass."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "rms_norm"


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, h) as the reference: x and residual `[T, E]` with dense rows and of one dtype, weight `[E]` dense.

    weight has x's dtype, or float32 where x has bfloat16. Without a residual h is x itself.
    """
    library = native()
    num_rows, size = x.shape
    assert weight.shape == (size,) and weight.is_contiguous() and x.stride(1) == 1
    out, total = torch.empty_like(x), x
    if residual is not None:
        assert residual.shape == x.shape and residual.dtype == x.dtype and residual.stride(1) == 1
        total = torch.empty_like(x)
    library.functions.switchgear_rms_norm(
        x.data_ptr(),
        x.stride(0),
        None if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        weight.data_ptr(),
        out.data_ptr(),
        total.data_ptr(),
        num_rows,
        size,
        eps,
        ELEMENTS[x.dtype],
        ELEMENTS[weight.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return out, total
