"""RMS norm of each row, with the addition of the residual in the same pass: a program takes a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

REFERENCE = "rms_norm"


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, h) as the reference: x and residual `[T, E]` with dense rows and of one dtype, weight `[E]` dense.

    weight has x's dtype or a wider one. Without a residual h is x itself.
    """
    num_rows, size = x.shape
    assert weight.shape == (size,) and weight.is_contiguous() and x.stride(1) == 1
    out, total = x.new_empty(x.shape), x
    if residual is not None:
        assert residual.shape == x.shape and residual.dtype == x.dtype and residual.stride(1) == 1
        total = x.new_empty(x.shape)
    padded_size = triton.next_power_of_2(size)
    rms_norm_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        total,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        EPS=eps,
        SIZE=size,
        PADDED_SIZE=padded_size,
        HAS_RESIDUAL=residual is not None,
        IS_DOUBLE=x.dtype == torch.float64,
        num_warps=min(16, max(1, padded_size // 512)),
    )
    return out, total


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_kernel(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    stride_x: int,
    stride_residual: int,
    EPS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    elements = tl.arange(0, PADDED_SIZE)
    is_inside = elements < SIZE
    wide = tl.float64 if IS_DOUBLE else tl.float32
    h = tl.load(x_ptr + row * stride_x + elements, mask=is_inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * stride_residual + elements, mask=is_inside, other=0.0)
        # rounded as the stream is stored: the norm is of what the next layer adds to
        h = (h.to(wide) + residual.to(wide)).to(h.dtype)
        tl.store(total_ptr + row * SIZE + elements, h, mask=is_inside)
    h = h.to(wide)
    normed = h / tl.sqrt(tl.sum(h * h, 0) / SIZE + EPS)
    weight = tl.load(weight_ptr + elements, mask=is_inside, other=0.0)
    # a weight of x's dtype multiplies after the rounding to it, a wider one before
    normed = normed.to(weight.dtype).to(wide) * weight.to(wide)
    tl.store(out_ptr + row * SIZE + elements, normed.to(out_ptr.dtype.element_ty), mask=is_inside)
