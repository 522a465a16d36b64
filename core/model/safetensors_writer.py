"""Writes a safetensors file block by block: memory holds one block, where the library's own writer takes the whole.

The format: a u64 length, a JSON header with the dtype, shape and byte range of each tensor, then the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

DTYPE_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The dtypes that can be written, with the format's names for them."""

ALIGNMENT = 64
"""The data starts on a cache line; spaces after the header's JSON are allowed by the format."""


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A tensor that is made while it is written."""

    name: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[torch.Tensor]]
    """Its elements in order, in blocks of any shape and floating dtype."""

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


def write_safetensors(
    path: Path, dtype: str, tensors: Sequence[StreamedTensor], on_written: Callable[[int], object]
) -> None:
    """Write all tensors in `dtype`; `on_written` is told the bytes of each block."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_elements * torch_dtype.itemsize
        header[tensor.name] = {"dtype": DTYPE_CODES[dtype], "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            for block in tensor.blocks():
                data = block.to(torch_dtype).contiguous().view(-1).view(torch.uint8).numpy().data
                file.write(data)
                on_written(data.nbytes)
        assert file.tell() == 8 + len(text) + end, "the blocks do not add up to the shapes"
