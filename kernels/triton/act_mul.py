"""The activation of the gate times up, in one pass and with one rounding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

REFERENCE = "act_mul"

TILE = 1024
ROOT_HALF = tl.constexpr(0.7071067811865476)
TWO_ROOTS = tl.constexpr(1.5957691216057308)
"""2 sqrt(2 / pi)."""


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


@triton.jit  # type: ignore[untyped-decorator]
def act_mul_kernel(
    gate_up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    stride: int,
    size: int,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    elements = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_inside = elements < size
    wide = tl.float64 if IS_DOUBLE else tl.float32
    gate = tl.load(gate_up_ptr + row * stride + elements, mask=is_inside, other=0.0).to(wide)
    up = tl.load(gate_up_ptr + row * stride + size + elements, mask=is_inside, other=0.0).to(wide)
    if ACTIVATION == "silu":
        gate = gate * sigmoid(gate)
    elif ACTIVATION == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * ROOT_HALF))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 + 0.5 tanh(y) is sigmoid(2y)
        gate = gate * sigmoid((gate + 0.044715 * gate * gate * gate) * TWO_ROOTS)
    else:
        tl.static_assert(ACTIVATION == "relu")
        gate = tl.maximum(gate, 0.0)
    tl.store(out_ptr + row * size + elements, (gate * up).to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit  # type: ignore[untyped-decorator]
def sigmoid(x: tl.tensor) -> tl.tensor:
    # exp(80) is near the end of float32, and beyond it nothing of the activation is left
    return 1.0 / (1.0 + tl.exp(tl.minimum(-x, 80.0)))
