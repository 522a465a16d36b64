"""Attention on the CPU by kernels of our own for decode, which read KV in place, and PyTorch's fused one for prompts.

A token of decode is a task or several: parts of its context, so that few long rows keep all threads busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...core.interfaces import KVCodec
from ...core.records import Batch, Device, IntArray, KVCache, LayerSpec, Refusal
from .sdpa import FusedAttention, Rectangle, first_seen

if TYPE_CHECKING:
    import torch

FEW_QUERIES = 8
"""A row with at most so many queries reads its keys once for each of them; with more, PyTorch's kernel is faster."""
SHORTEST_PART = 128
"""Keys in a part of a context that is divided, at least."""
PARTS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Meta:
    """A step: the slots that it writes, the tasks of its single queries, and the rectangles of its long rows."""

    slots: torch.Tensor
    block_table: torch.Tensor
    tasks: torch.Tensor
    merges: torch.Tensor
    rectangles: list[Rectangle]


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """Single queries by `decode_attention`, long rows by `FusedAttention`, over one cache."""

    layer: LayerSpec
    fused: FusedAttention
    is_alone: bool
    """PyTorch's kernel cannot compute this kind of layer: long rows are taken query by query."""
    reason: str
    layout: str = "NSKD"

    def plan(self, batch: Batch, group: int) -> Meta:
        import torch

        query_lens = batch.query_lens
        is_few = (query_lens <= FEW_QUERIES) | self.is_alone
        rows = np.repeat(np.arange(len(query_lens)), query_lens)
        tokens = np.flatnonzero(is_few[rows])
        tasks, merges = self._tasks(batch, rows[tokens], tokens)
        return Meta(
            torch.from_numpy(batch.slots[group]),
            torch.from_numpy(batch.block_tables[group]),
            torch.from_numpy(tasks),
            torch.from_numpy(merges),
            list(self.fused.rectangles(batch, group, np.flatnonzero(~is_few))),
        )

    def _tasks(self, batch: Batch, rows: IntArray, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """`[P, 4]` parts of what each of these tokens of these rows sees, and `[R, 3]` which parts are whose."""
        import torch

        ends = batch.positions[tokens] + 1
        firsts = first_seen(self.layer, ends - 1)
        length = max(SHORTEST_PART, -(-int((ends - firsts).sum()) // (PARTS_PER_THREAD * torch.get_num_threads())))
        counts = -(-(ends - firsts) // length)
        starts = counts.cumsum() - counts
        owner = np.repeat(np.arange(len(tokens)), counts)
        part_starts = firsts[owner] + (np.arange(len(owner)) - starts[owner]) * length
        part_ends = np.minimum(part_starts + length, ends[owner])
        tasks = np.stack([tokens[owner], rows[owner], part_starts, part_ends], axis=1)
        return tasks, np.stack([tokens, starts, counts], axis=1)

    def new_states(self, meta: Meta) -> torch.Tensor:
        """Working memory of a layer's tasks; a few numbers for each, and not kept, so that `meta` stays as planned."""
        import torch

        from ...kernels.cpu.decode_attention import new_states

        layer = self.layer
        return new_states(len(meta.tasks), layer.num_heads, layer.head_size, getattr(torch, self.fused.dtype))

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Meta) -> None:
        from ...kernels.cpu.write_kv import write_kv

        write_kv(k, v, cache.k, cache.v, meta.slots)

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Meta, out: torch.Tensor) -> None:
        from ...kernels.cpu.decode_attention import decode_attention

        if len(meta.tasks):
            step = (meta.block_table, meta.tasks, meta.merges, self.new_states(meta))
            decode_attention(q, cache.k, cache.v, *step, out, self.layer.scale, self.layer.soft_cap)
        self.fused.forward(q, cache, (meta.slots, meta.rectangles), out)


def refusal(codec: KVCodec, device: Device) -> Refusal | None:
    """Why the native kernels cannot serve here."""
    from ...kernels.cpu.library import Unusable, usable

    reasons = []
    if device.type != "cpu":
        reasons.append(f"the native kernels are for the CPU, not for {device.type}")
    if device.dtype not in ("bfloat16", "float32", "float64"):
        reasons.append(f"there are no native kernels for {device.dtype}")
    if codec.name != "none":
        reasons.append(f"the native kernels read KV as it was computed, and here it is stored as {codec.name}")
    try:
        usable()
    except Unusable as reason:
        reasons.append(str(reason))
    return Refusal(tuple(reasons)) if reasons else None
