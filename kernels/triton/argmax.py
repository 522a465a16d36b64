"""The place of the largest number of each row, such as the most likely token: a program takes a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

REFERENCE = "argmax"

TILE = 4096


def argmax(x: torch.Tensor) -> torch.Tensor:
    """As the reference: x `[L, V]` with dense rows, to `[L]` int64. Of equals the first, and NaN before all."""
    num_rows, size = x.shape
    assert x.stride(1) == 1
    out = x.new_empty(num_rows, dtype=torch.int64)
    argmax_kernel[(num_rows,)](
        x, out, x.stride(0), SIZE=size, TILE=min(TILE, triton.next_power_of_2(size)), num_warps=8
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def argmax_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, stride: int, SIZE: tl.constexpr, TILE: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, TILE)
    # of each lane: the largest so far and where, and where it first met what is no number
    largest = tl.full([TILE], float("-inf"), x_ptr.dtype.element_ty)
    places = lanes
    strange = tl.full([TILE], SIZE, tl.int32)
    for start in range(0, SIZE, TILE):
        at = start + lanes
        x = tl.load(x_ptr + row * stride + at, mask=at < SIZE, other=float("-inf"))
        is_larger = x > largest
        largest = tl.where(is_larger, x, largest)
        places = tl.where(is_larger, at, places)
        strange = tl.minimum(strange, tl.where(x != x, at, SIZE))
    top = tl.max(largest, 0)
    place = tl.min(tl.where(largest == top, places, SIZE), 0)
    first_strange = tl.min(strange, 0)
    tl.store(out_ptr + row, tl.where(first_strange < SIZE, first_strange, place).to(tl.int64))
