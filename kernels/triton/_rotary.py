"""The turn of a token's heads by its position, for the kernels that need it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def turned(
    source: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    elements: tl.tensor,
    is_inside: tl.tensor,
    HALF: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> tl.tensor:
    """Heads of a token as they are after the turn, in float32 at least.

    source: where each head begins, `[heads, 1]`; cos_ptr, sin_ptr: where the token's HALF angles begin; elements
    `[1, size]`. What lies behind both halves stays.
    """
    wide = tl.float64 if IS_DOUBLE else tl.float32
    x = tl.load(source + elements, mask=is_inside, other=0.0).to(wide)
    # element i turns with element i + HALF
    is_first = elements < HALF
    turns = elements < 2 * HALF
    partner = tl.where(is_first, elements + HALF, elements - HALF)
    other = tl.load(source + partner, mask=is_inside & turns, other=0.0).to(wide)
    angle = tl.where(is_first, elements, elements - HALF)
    cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(wide)
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(wide)
    return x * cos + other * tl.where(is_first, -sin, sin)
