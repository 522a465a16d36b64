"""A linear from packed weights: few rows stream the weights at the speed of memory, many keep the multipliers busy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from .elements import ELEMENTS
from .library import Library, native
from .memory import Arena

REFERENCE = "linear"


class Parameters(ctypes.Structure):
    """As `PackedLinear` in linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_outputs", ctypes.c_int64),
        ("num_inputs", ctypes.c_int64),
        ("element", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight in the form that linear.h describes."""

    library: Library
    packed: torch.Tensor
    """The bytes."""
    bias: torch.Tensor | None
    """In the type that sums are kept in, padded with zeros to a multiple of 16."""
    dtype: torch.dtype
    num_outputs: int
    num_inputs: int
    parameters: Parameters
    address: int

    @property
    def num_bytes(self) -> int:
        return self.packed.nbytes + (self.bias.nbytes if self.bias is not None else 0)


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    arena: Arena | None = None,
    library: Library | None = None,
) -> PackedLinear:
    """weight `[rows, in]` with dense rows, of a dtype in ELEMENTS; bias `[rows]`. Keeps neither.

    arena: where the packed weight goes; those of one model should lie together.
    """
    library, arena = library or native(), arena or Arena()
    assert weight.dim() == 2 and weight.stride(1) == 1
    (num_outputs, num_inputs), element = weight.shape, ELEMENTS[weight.dtype]
    size = library.functions.switchgear_linear_size(num_outputs, num_inputs, element)
    packed = arena.take(size)
    library.functions.switchgear_linear_pack(
        weight.data_ptr(),
        weight.stride(0),
        packed.data_ptr(),
        num_outputs,
        num_inputs,
        element,
        torch.get_num_threads(),
    )
    padded = None
    if bias is not None:
        padded = torch.zeros(-(-num_outputs // 16) * 16, dtype=torch.promote_types(weight.dtype, torch.float32))
        padded[:num_outputs] = bias
    parameters = Parameters(
        packed.data_ptr(), None if padded is None else padded.data_ptr(), num_outputs, num_inputs, element
    )
    return PackedLinear(
        library, packed, padded, weight.dtype, num_outputs, num_inputs, parameters, ctypes.addressof(parameters)
    )


def linear(x: torch.Tensor, packed: PackedLinear, out: torch.Tensor | None = None) -> torch.Tensor:
    """x `[T, in]` with dense rows, of the weight's dtype, to `[T, rows]`; into `out`, which must have dense rows."""
    assert x.dim() == 2 and x.shape[1] == packed.num_inputs and x.dtype == packed.dtype and x.stride(1) == 1
    num_rows = x.shape[0]
    if out is None:
        out = x.new_empty((num_rows, packed.num_outputs))
    assert out.shape == (num_rows, packed.num_outputs) and out.dtype == packed.dtype and out.stride(1) == 1
    packed.library.functions.switchgear_linear(
        packed.address,
        x.data_ptr(),
        x.stride(0),
        out.data_ptr(),
        out.stride(0),
        num_rows,
        packed.library.level,
        torch.get_num_threads(),
    )
    return out
