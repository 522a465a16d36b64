"""Attention by Triton kernels that read the cache through block tables: nothing is gathered or padded.

Rows with few queries (decode, drafts) have their context split among programs, those with many (prompts and chunks of
them) their queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...core.interfaces import KVCodec
from ...core.records import Batch, Device, IntArray, KVCache, LayerSpec, Refusal

if TYPE_CHECKING:
    import torch

MAX_HEAD_SIZE = 256
FEW_QUERIES = 8
"""A row with at most so many queries has fewer tiles of queries than parts of its context."""


@dataclass(frozen=True, slots=True)
class Meta:
    """A step on the device; all int32."""

    slots: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    few_rows: torch.Tensor
    """Rows whose context is split."""
    tile_rows: torch.Tensor
    """The row of each tile of queries, of the other rows."""
    tile_starts: torch.Tensor
    """The first query of each tile."""
    max_few: int
    """Queries of a row in `few_rows`, at most; a power of two, since each number is a kernel of its own to compile."""
    num_splits: int


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """`flash_prefill` and `flash_decode` over one paged cache."""

    layer: LayerSpec
    device: Device
    reason: str
    layout: str = "NKSD"
    is_capturable: bool = True

    def plan(self, batch: Batch, group: int) -> Meta:
        import torch

        from ...kernels.triton.flash_decode import default_splits

        query_lens = batch.query_lens
        is_few = query_lens <= FEW_QUERIES
        few_rows = np.flatnonzero(is_few)
        longest = int(batch.context_lens[few_rows].max(initial=1))
        if self.layer.window is not None:
            longest = min(longest, self.layer.window + FEW_QUERIES)
        num_splits = default_splits(
            max(1, len(few_rows)), self.layer.num_kv_heads, longest, num_processors(self.device)
        )
        tile_rows, tile_starts = self._tiles(batch, np.flatnonzero(~is_few))
        table = batch.block_tables[group]
        arrays = (batch.slots[group], batch.query_start, batch.context_lens, table, few_rows, tile_rows, tile_starts)
        # one copy for all: each takes longer to begin than these few numbers take to go over
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]).astype(np.int32))
        on_device = flat.to(self.device.type).split([array.size for array in arrays])
        slots, query_start, context_lens, block_table, few, rows, starts = on_device
        return Meta(
            slots,
            query_start,
            context_lens,
            block_table.view(table.shape),
            few,
            rows,
            starts,
            max_few=1 << (int(query_lens[few_rows].max(initial=1)) - 1).bit_length(),
            num_splits=num_splits,
        )

    def _tiles(self, batch: Batch, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Rows and first queries of all tiles, those that see most first, so that no long one is left for the end."""
        from ...kernels.triton.flash_prefill import queries_per_tile

        height = queries_per_tile(self._group, self._prefill_tiles()[0])
        counts = -(-batch.query_lens[rows] // height)
        tile_rows = np.repeat(rows, counts)
        tile_starts = (np.arange(len(tile_rows)) - np.repeat(counts.cumsum() - counts, counts)) * height
        ends = batch.context_lens[tile_rows] - batch.query_lens[tile_rows] + tile_starts
        order = np.argsort(-ends, kind="stable")
        return tile_rows[order], tile_starts[order]

    @property
    def _group(self) -> int:
        return self.layer.num_heads // self.layer.num_kv_heads

    def _prefill_tiles(self) -> tuple[int, int, int]:
        import torch

        from ...kernels.triton.flash_prefill import default_tiles

        return default_tiles(self.layer.head_size, getattr(torch, self.device.dtype))

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Meta) -> None:
        from ...kernels.triton.kv_write import write_kv

        write_kv(k, v, cache.k, cache.v, meta.slots)

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Meta, out: torch.Tensor) -> None:
        from ...kernels.triton.flash_decode import flash_decode
        from ...kernels.triton.flash_prefill import flash_prefill

        layer = self.layer
        step = (meta.query_start, meta.context_lens, meta.block_table, out, layer.scale, layer.window, layer.soft_cap)
        if len(meta.few_rows):
            flash_decode(q, cache.k, cache.v, meta.few_rows, *step, meta.max_few, meta.num_splits)
        if len(meta.tile_rows):
            flash_prefill(q, cache.k, cache.v, meta.tile_rows, meta.tile_starts, *step, self._prefill_tiles())


@cache
def num_processors(device: Device) -> int:
    """Programs that run at once."""
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count if device.type == "cuda" else 1


def refusal(layer: LayerSpec, codec: KVCodec, device: Device) -> Refusal | None:
    """Why the Triton kernels cannot compute this kind of layer here."""
    from ...kernels.triton._support import unusable

    reasons = [unusable(device.type, device.dtype)]
    if codec.name != "none":
        reasons.append(f"the Triton kernels read KV as it was computed, and here it is stored as {codec.name}")
    if layer.head_size > MAX_HEAD_SIZE:
        reasons.append(f"the Triton kernels take heads of up to {MAX_HEAD_SIZE} elements, not of {layer.head_size}")
    given = tuple(filter(None, reasons))
    return Refusal(given) if given else None
