"""A GGUF file, memory-mapped: its metadata as Python values, its tensors as float32 row blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from ..errors import ModelError
from .gguf_header import TensorInfo, read_header

BLOCK_ELEMENTS = 1 << 20
"""Elements dequantised at a time: 4 MB of float32."""


class GGUFFile:
    """One opened file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = np.memmap(path, np.uint8, mode="r")
            self._metadata, self._tensors = read_header(self._data)
        except OSError as error:
            raise ModelError(
                f"{path} cannot be opened ({error.strerror}); check the path and who may read it"
            ) from error
        except ValueError as error:
            raise ModelError(f"{path} is truncated or not a GGUF file ({error}); fetch it again") from error

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value: str, int, float, bool or a list of them."""
        return self._metadata.get(key, default)

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path} lacks the metadata {key!r}; get the file from another source")
        return value

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """`(rows, columns)`, `(elements,)` of a vector, or `(experts, rows, columns)` of a stack."""
        return self._tensors[name].shape

    def blocks(self, name: str, rows: npt.NDArray[np.intp] | None = None) -> Iterator[torch.Tensor]:
        """The tensor in float32, a block of rows at a time; a stack counts as one matrix of all its rows.

        rows: which to take, in this order; all in file order else.
        """
        tensor = self._tensors[name]
        stored = self._stored_rows(tensor)
        num_rows = len(stored) if rows is None else len(rows)
        columns = tensor.shape[-1:] if len(tensor.shape) > 1 else ()
        step = max(1, BLOCK_ELEMENTS // max(1, prod(columns)))
        for start in range(0, num_rows, step):
            chosen = stored[start : start + step] if rows is None else stored[rows[start : start + step]]
            try:
                values = gguf.dequantize(chosen, tensor.kind)
            except NotImplementedError as error:
                raise ModelError(
                    f"{self.path} stores {name} as {tensor.kind.name}, which cannot be read; "
                    "get the model in another quantization such as Q4_K_M or Q8_0"
                ) from error
            yield torch.from_numpy(np.array(values, dtype=np.float32).reshape(-1, *columns))

    def _stored_rows(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """`[rows, bytes of a row]`; an element of a vector is a row."""
        num_rows = prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
        return self._data[tensor.start : tensor.start + tensor.num_bytes].reshape(num_rows, -1)
