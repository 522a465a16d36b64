"""The activation of the gate times up, in one pass and with one rounding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

REFERENCE = "act_mul"

TILE = 1024
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_TWO_OVER_PI = tl.constexpr(0.7978845608028654)


def act_mul(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """As the reference: gate_up `[T, 2F]` (gate first) with dense rows, to `[T, F]`."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape[1] == 2 * size and gate_up.stride(1) == 1
    out = gate_up.new_empty((num_rows, size))
    act_mul_kernel[(num_rows, triton.cdiv(size, TILE))](
        gate_up,
        out,
        gate_up.stride(0),
        size,
        ACTIVATION=activation,
        TILE=TILE,
        IS_DOUBLE=gate_up.dtype == torch.float64,
        num_warps=4,
    )
    return out


@triton.jit
def act_mul_kernel(
    gate_up_ptr, out_ptr, stride, size, ACTIVATION: tl.constexpr, TILE: tl.constexpr, IS_DOUBLE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    elements = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_inside = elements < size
    wide = tl.float64 if IS_DOUBLE else tl.float32
    gate = tl.load(gate_up_ptr + row * stride + elements, mask=is_inside, other=0.0).to(wide)
    up = tl.load(gate_up_ptr + row * stride + size + elements, mask=is_inside, other=0.0).to(wide)
    if ACTIVATION == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * ROOT_HALF))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 + 0.5 tanh(y) is 1 / (1 + exp(-2y))
        gate = gate / (1.0 + tl.exp(-2.0 * ROOT_TWO_OVER_PI * (gate + 0.044715 * gate * gate * gate)))
    else:
        tl.static_assert(ACTIVATION == "relu")
        gate = tl.maximum(gate, 0.0)
    tl.store(out_ptr + row * size + elements, (gate * up).to(out_ptr.dtype.element_ty), mask=is_inside)
