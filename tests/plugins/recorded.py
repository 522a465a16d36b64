"""CUDA graphs without CUDA: a recorder that replays by calling again, and an attention whose shapes stand still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import KVCodec
from switchgear.core.model import ops
from switchgear.core.records import TOKEN_EQUAL, Batch, KVCache, LayerSpec
from switchgear.plugins.cuda_graphs import CudaGraphs, Recorder, Recording


class Again:
    """Replays by calling again what was recorded, with the Python values of then.

    As graphs that share memory do, a replay ruins what others have computed.
    """

    def __init__(self, bytes_each: int = 0) -> None:
        self.bytes_each = bytes_each
        self.outputs: list[torch.Tensor] = []

    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        output = call().clone()
        self.outputs.append(output)

        @torch.inference_mode()
        def replay() -> None:
            for other in self.outputs:
                other.fill_(torch.nan)
            output.copy_(call())

        return Recording(output, replay)

    def num_bytes(self) -> int:
        return self.bytes_each * len(self.outputs)


class GraphsOnCPU(CudaGraphs):
    """The plugin with that recorder, on whatever device, beside whatever attention."""

    requires = ()
    bytes_each = 0

    def make_recorder(self) -> Recorder:
        return Again(self.bytes_each)

    def _reasons_of(self, device: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Meta:
    slots: torch.Tensor
    table: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    block_size: int


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    """Every token reads all that its row's table has room for, and hides what it does not see."""

    layer: LayerSpec
    codec: KVCodec
    layout: str = "NSKD"
    is_capturable: bool = True

    def plan(self, batch: Batch, group: int) -> Meta:
        rows = np.repeat(np.arange(len(batch.rows)), batch.query_lens)
        arrays = (batch.slots[group], batch.block_tables[group], rows, batch.positions)
        slots, table, row_of, positions = (torch.from_numpy(array.copy()) for array in arrays)
        return Meta(slots, table, row_of, positions, batch.block_size)

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Meta) -> None:
        cache.k.flatten(0, 1)[meta.slots] = self.codec.encode(k)
        cache.v.flatten(0, 1)[meta.slots] = self.codec.encode(v)

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Meta, out: torch.Tensor) -> None:
        slots = meta.table[meta.rows].unsqueeze(-1) * meta.block_size + torch.arange(meta.block_size)
        slots = slots.flatten(1)
        keys, positions = torch.arange(slots.shape[1]), meta.positions.unsqueeze(1)
        seen = keys <= positions
        if self.layer.window is not None:
            seen &= keys > positions - self.layer.window
        k, v = (self.codec.decode(x.flatten(0, 1)[slots], q.dtype) for x in (cache.k, cache.v))
        v = torch.where(seen[:, :, None, None], v, 0)
        args = (seen.unsqueeze(1), self.layer.scale, self.layer.soft_cap)
        out.copy_(ops.attention(q.unsqueeze(1), k, v, *args).squeeze(1))


class Masked:
    """Attention of shapes that follow from rows and tables alone."""

    name = "masked"
    equivalence = TOKEN_EQUAL
    hook_api = (1, 0)

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def attention_impl(self, layer: LayerSpec, codec: KVCodec) -> MaskedAttention:
        return MaskedAttention(layer, codec)


ON: dict[str, Any] = {"masked": {}, "cuda_graphs": {"memory_bytes": 0}}
CLASSES = (Masked, GraphsOnCPU)
