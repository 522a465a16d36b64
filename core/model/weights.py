"""Safetensors through the memory map, straight into the layout that the decoder computes with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError
from ..records import LinearSpec

SPLIT_BY_ROWS = frozenset({"qkv", "gate_up", "up", "head", "embedding"})
"""Kinds of linear of which each rank of tensor parallelism holds some outputs."""
SPLIT_BY_COLUMNS = frozenset({"o", "down"})
"""Kinds of which each rank holds some inputs, so that its outputs are partial sums."""


class SafetensorsReader:
    """Implements `TensorReader` over the shards of one checkpoint."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._handles: dict[Path, Any] = {path: _open(path) for path in paths}  # the library types no method of it
        self._shard_of: dict[str, Path] = {}
        for path, handle in self._handles.items():
            self._shard_of.update(dict.fromkeys(handle.keys(), path))

    def names(self) -> frozenset[str]:
        return frozenset(self._shard_of)

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored, backed by the file's memory map: never write to it."""
        path = self._shard_of.get(name)
        if path is None:
            files = ", ".join(str(path) for path in self._handles)
            raise ModelError(f"the tensor {name} is not in {files}; the checkpoint does not fit its config.json")
        try:
            tensor: torch.Tensor = self._handles[path].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"cannot read the tensor {name} from {path} ({error}); fetch the model again") from error
        return tensor

    def fused(self, spec: LinearSpec, suffix: str, dtype: torch.dtype) -> torch.Tensor:
        """The spec's `suffix` ("weight" `[rows, in]`, "bias" `[rows]`) in `dtype`, cut to the rank's shard.

        Backed by the memory map where the file holds it in this form; otherwise the only allocation is the result.
        """
        whole = self._whole(spec, suffix)
        if whole is not None:
            pieces = list(torch.split(whole, [part.num_rows for part in spec.parts]))
        else:
            pieces = [self._read_checked(f"{part.name}.{suffix}", spec, part.num_rows) for part in spec.parts]
        if spec.shard[1] > 1:
            whole = None
            pieces = [_cut(piece, spec) for piece in pieces]
        if whole is None and len(pieces) == 1:
            whole = pieces[0]
        if whole is not None:
            return whole.to(dtype).contiguous()
        return _join(pieces, dtype)

    def _whole(self, spec: LinearSpec, suffix: str) -> torch.Tensor | None:
        """All parts in one tensor, where the checkpoint has them so."""
        fused_name = f"{spec.path}.{suffix}"
        if fused_name in self._shard_of and spec.tied_to is None:
            return self._read_checked(fused_name, spec, spec.out_features)
        if spec.stacked is not None and spec.stacked[0] in self._shard_of:
            name, index = spec.stacked
            return self._read_checked(name, spec, spec.num_experts, spec.out_features)[index]
        return None

    def _read_checked(self, name: str, spec: LinearSpec, *rows: int) -> torch.Tensor:
        tensor = self.read(name)
        expected = rows if name.endswith(".bias") else (*rows, spec.in_features)
        if tensor.shape != expected:
            raise ModelError(
                f"the tensor {name} in {self._shard_of[name]} is {list(tensor.shape)} where config.json means "
                f"{list(expected)}; the two files belong to different models"
            )
        return tensor


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; fetch the model again") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is truncated or not a safetensors file ({error}); fetch the model again") from error


def _cut(tensor: torch.Tensor, spec: LinearSpec) -> torch.Tensor:
    rank, size = spec.shard
    if spec.kind in SPLIT_BY_ROWS:
        dim = 0
    elif spec.kind in SPLIT_BY_COLUMNS and tensor.dim() == 2:
        dim = 1
    else:
        return tensor
    length, rest = divmod(tensor.shape[dim], size)
    if rest:
        raise ModelError(
            f"{spec.path} has {tensor.shape[dim]} {('rows', 'columns')[dim]}, not divisible by {size} ranks"
        )
    return tensor.narrow(dim, rank * length, length)


def _join(pieces: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    num_rows = sum(piece.shape[0] for piece in pieces)
    joined = torch.empty((num_rows, *pieces[0].shape[1:]), dtype=dtype)
    for target, piece in zip(torch.split(joined, [piece.shape[0] for piece in pieces]), pieces, strict=True):
        target.copy_(piece)
    return joined
