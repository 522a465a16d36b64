"""The header of a GGUF file: its metadata as Python values, and where each tensor lies.

The format's own reader keeps an array for each element of each list, which for a vocabulary of 262,144 pieces takes
ten seconds and 700 MB; reading them as lists takes well under a second. Layout: magic, version, counts, then
(key, type, value) for the metadata and (name, dimensions, type, offset) for the tensors, all little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

FLOAT32 = 6
STRING = 8
ARRAY = 9
NUMBERS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    FLOAT32: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""The format's codes of types that have a fixed size, as numpy spells them."""


class HeaderError(ValueError):
    """Bytes that are no GGUF header."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and how it is stored."""

    shape: tuple[int, ...]
    """Rows first: `(rows, columns)`, `(elements,)` of a vector, `(experts, rows, columns)` of a stack."""
    kind: gguf.GGMLQuantizationType
    start: int
    """Offset of its first byte in the file."""
    num_bytes: int


def read_header(data: npt.NDArray[np.uint8]) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Metadata by key and tensors by name of a whole file; HeaderError where it is cut short or something else."""
    cursor = _Cursor(data)
    try:
        magic, version, num_tensors, num_keys = cursor.unpack("<4sIQQ")
        if magic != MAGIC or version not in VERSIONS:
            raise HeaderError(f"it begins with {magic!r}, version {version}")
        metadata = {}
        for _ in range(num_keys):
            key = cursor.string("a key")
            metadata[key] = cursor.value(cursor.number("<I"), key)
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
    except struct.error as error:
        raise HeaderError("it ends within its header") from error
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise HeaderError(f"its alignment is {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {name: _locate(shape, kind, data_start + offset) for name, shape, kind, offset in entries}
    if any(tensor.start + tensor.num_bytes > data.size for tensor in tensors.values()):
        raise HeaderError("it ends within its tensors")
    return metadata, tensors


class _Cursor:
    """Reads one value after another."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._view = data.data
        self.position = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._view, self.position)
        self.position += struct.calcsize(layout)
        return values

    def number(self, layout: str) -> int:
        return int(self.unpack(layout)[0])

    def string(self, key: str) -> str:
        raw = bytes(self._take(self.number("<Q")))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise HeaderError(f"{key} is not UTF-8") from error

    def value(self, code: int, key: str) -> Any:
        if code == STRING:
            return self.string(key)
        if code == ARRAY:
            element, length = self.unpack("<IQ")
            return self._list(element, length, key)
        value = self._numbers(code, 1, key)[0]
        if code == FLOAT32:
            return float(str(value))  # the decimal that was meant: 1e-05, not 9.999999747378752e-06
        return value.item()

    def _list(self, code: int, length: int, key: str) -> list[Any]:
        if code == STRING:
            return [self.string(key) for _ in range(length)]
        values: list[Any] = self._numbers(code, length, key).tolist()
        return values

    def _numbers(self, code: int, count: int, key: str) -> npt.NDArray[Any]:
        if code not in NUMBERS:
            raise HeaderError(f"{key} is of the unknown type {code}")
        dtype = np.dtype(NUMBERS[code])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _take(self, num_bytes: int) -> memoryview:
        end = self.position + num_bytes
        if end > len(self._view):
            raise HeaderError("it ends within its metadata")
        taken = self._view[self.position : end]
        self.position = end
        return taken


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], gguf.GGMLQuantizationType, int]:
    name = cursor.string("the name of a tensor")
    num_dimensions = cursor.number("<I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise HeaderError(f"{name} has {num_dimensions} dimensions")
    shape = cursor.unpack(f"<{num_dimensions}Q")[::-1]
    kind, offset = cursor.unpack("<IQ")
    return name, shape, gguf.GGMLQuantizationType(kind), offset


def _locate(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, start: int) -> TensorInfo:
    return TensorInfo(shape, kind, start, prod(gguf.quant_shape_to_byte_shape(shape, kind)))
