"""Rotary positions of queries or keys, read where they lie among a token's q, k and v: a program takes a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._rotary import turned

REFERENCE = "rope"


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As the reference: x `[T, heads, D]` with dense heads; cos and sin `[T, R / 2]`, R <= D, dense."""
    num_tokens, num_heads, size = x.shape
    half = cos.shape[1]
    assert cos.shape == sin.shape == (num_tokens, half) and 2 * half <= size and x.stride(2) == 1
    assert cos.is_contiguous() and sin.is_contiguous()
    out = x.new_empty(x.shape)
    rope_kernel[(num_tokens,)](
        x,
        cos,
        sin,
        out,
        x.stride(0),
        x.stride(1),
        NUM_HEADS=num_heads,
        PADDED_HEADS=triton.next_power_of_2(num_heads),
        SIZE=size,
        PADDED_SIZE=triton.next_power_of_2(size),
        HALF=half,
        IS_DOUBLE=x.dtype == torch.float64,
        num_warps=4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def rope_kernel(
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    out_ptr: tl.tensor,
    stride_token: int,
    stride_head: int,
    NUM_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    elements = tl.arange(0, PADDED_SIZE)[None, :]
    is_inside = (heads < NUM_HEADS) & (elements < SIZE)
    source = x_ptr + token * stride_token + heads * stride_head
    x = turned(source, cos_ptr + token * HALF, sin_ptr + token * HALF, elements, is_inside, HALF, IS_DOUBLE)
    target = (token * NUM_HEADS + heads) * SIZE + elements
    tl.store(out_ptr + target, x.to(out_ptr.dtype.element_ty), mask=is_inside)
