"""Rotary positions of queries or keys, read where they lie among a token's q, k and v."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "rope"


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As the reference: x `[T, heads, D]` with dense heads; cos and sin `[T, R / 2]`, R <= D, dense, of x's dtype."""
    library = native()
    num_tokens, num_heads, size = x.shape
    half = cos.shape[1]
    assert cos.shape == sin.shape == (num_tokens, half) and 2 * half <= size
    assert cos.dtype == sin.dtype == x.dtype and cos.is_contiguous() and sin.is_contiguous() and x.stride(2) == 1
    out = x.new_empty(x.shape)
    library.functions.switchgear_rope(
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        num_tokens,
        num_heads,
        size,
        half,
        ELEMENTS[x.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return out
