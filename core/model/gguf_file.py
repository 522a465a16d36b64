"""A GGUF file, memory-mapped: its metadata as Python values, its tensors as float32 row blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from ..errors import ModelError

BLOCK_ELEMENTS = 1 << 20
"""Elements dequantised at a time: 4 MB of float32."""


class GGUFFile:
    """One opened file. Opening parses the metadata, which takes seconds for a large vocabulary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise ModelError(
                f"{path} cannot be opened ({error.strerror}); check the path and who may read it"
            ) from error
        except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
            raise ModelError(f"{path} is truncated or not a GGUF file ({error}); fetch it again") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value: str, int, float, bool or a list of them."""
        field = self._reader.get_field(key)
        if field is None:
            return default
        try:
            value = field.contents()
        except ValueError as error:
            raise ModelError(f"{self.path} is damaged in its metadata {key!r} ({error}); fetch it again") from error
        if field.types == [gguf.GGUFValueType.FLOAT32]:
            return float(str(np.float32(value)))  # the decimal that was meant: 1e-05, not 9.999999747378752e-06
        return value

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path} lacks the metadata {key!r}; get the file from another source")
        return value

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """`(rows, columns)`, or `(elements,)` of a vector."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def blocks(self, name: str, order: npt.NDArray[np.intp] | None = None) -> Iterator[torch.Tensor]:
        """The tensor in float32, a block of rows at a time; `order` names the rows to take, all in file order else."""
        tensor = self._tensors[name]
        num_rows, *columns = self.shape(name)
        step = max(1, BLOCK_ELEMENTS // max(1, *columns, 1))
        for start in range(0, num_rows, step):
            rows = slice(start, start + step) if order is None else order[start : start + step]
            try:
                values = gguf.dequantize(tensor.data[rows], tensor.tensor_type)
            except NotImplementedError as error:
                raise ModelError(
                    f"{self.path} stores {name} as {tensor.tensor_type.name}, which cannot be read; "
                    "get the model in another quantization such as Q4_K_M or Q8_0"
                ) from error
            yield torch.from_numpy(np.array(values, dtype=np.float32))
