"""The activation of the gate times up, in one pass and with one rounding."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "act_mul"

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
"""By the numbers that the library has for them."""


def act_mul(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """As the reference: gate_up `[T, 2F]` (gate first) with dense rows, to `[T, F]`."""
    library = native()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape[1] == 2 * size and gate_up.stride(1) == 1
    out = gate_up.new_empty((num_rows, size))
    library.functions.switchgear_act_mul(
        gate_up.data_ptr(),
        gate_up.stride(0),
        out.data_ptr(),
        num_rows,
        size,
        ACTIVATIONS[activation],
        ELEMENTS[gate_up.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return out
