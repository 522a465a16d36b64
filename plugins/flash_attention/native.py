"""Attention on the CPU by kernels of our own, which read KV where it lies: one for decode, one for prompts.

A token of decode is a task or several: parts of its context, so that few long rows keep all threads busy. A prompt's
queries are cut into stretches, each a task for every KV head. Where the processor has tile registers PyTorch multiplies
prompts with them, and is left to.
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
"""A row with at most so many queries reads its keys once for each of them; with more, they are packed first."""
SHORTEST_PART = 128
"""Keys in a part of a context that is divided, at least."""
PARTS_PER_THREAD = 4
NO_TOKEN = -1
"""Of a task that is none."""


@dataclass(frozen=True, slots=True)
class Meta:
    """A step: the slots that it writes, the tasks of its single queries, and what its long rows are cut into."""

    slots: torch.Tensor
    block_table: torch.Tensor
    tasks: torch.Tensor
    merges: torch.Tensor
    tiles: torch.Tensor
    stretches: torch.Tensor
    rectangles: list[Rectangle]


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """Single queries by `decode_attention`, long rows by `prefill_attention` or `FusedAttention`, over one cache."""

    layer: LayerSpec
    dtype: str
    fused: FusedAttention | None
    """For long rows, where PyTorch is faster."""
    reason: str
    layout: str = "NSKD"
    is_capturable: bool = True

    def plan(self, batch: Batch, group: int) -> Meta:
        import torch

        query_lens = batch.query_lens
        is_few = query_lens <= FEW_QUERIES
        rows = np.repeat(np.arange(len(query_lens)), query_lens)
        tokens = np.flatnonzero(is_few[rows])
        long = np.flatnonzero(~is_few)
        ours, theirs = (long, long[:0]) if self.fused is None else (long[:0], long)
        tasks, merges = self._tasks(batch, rows[tokens], tokens)
        tiles, stretches = self._stretches(batch, ours)
        return Meta(
            torch.from_numpy(batch.slots[group]),
            torch.from_numpy(batch.block_tables[group]),
            torch.from_numpy(tasks),
            torch.from_numpy(merges),
            torch.from_numpy(tiles),
            torch.from_numpy(stretches),
            list(self.fused.rectangles(batch, group, theirs)) if self.fused is not None else [],
        )

    def _tasks(self, batch: Batch, rows: IntArray, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """`[P, 4]` parts of what each of these tokens of these rows sees, and `[R, 3]` which parts are whose.

        P follows from R, whatever the contexts: the last tasks may be none.
        """
        import torch

        most_parts = PARTS_PER_THREAD * torch.get_num_threads()
        ends = batch.positions[tokens] + 1
        firsts = first_seen(self.layer, ends - 1)
        length = max(SHORTEST_PART, -(-int((ends - firsts).sum()) // most_parts))
        owner, part, starts = cut(ends - firsts, length)
        part_starts = firsts[owner] + part * length
        part_ends = np.minimum(part_starts + length, ends[owner])
        tasks = np.zeros((len(tokens) + most_parts if len(tokens) else 0, 4), dtype=np.int64)
        tasks[:, 0] = NO_TOKEN
        tasks[: len(owner)] = np.stack([tokens[owner], rows[owner], part_starts, part_ends], axis=1)
        return tasks, np.stack([tokens, starts, np.bincount(owner, minlength=len(tokens))], axis=1)

    def _stretches(self, batch: Batch, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The tiles of keys of these rows, and the stretches of their queries, as `prefill_attention` wants them."""
        import torch

        from ...kernels.cpu.prefill_attention import KEYS, most_queries

        layer, dtype = self.layer, getattr(torch, self.dtype)
        height = most_queries(layer.num_heads, layer.num_kv_heads, layer.head_size, dtype)
        ends, counts = batch.context_lens[rows], batch.query_lens[rows]
        # from the first position that a query sees: the blocks before it may be another row's by now
        firsts = first_seen(layer, ends - counts)
        owner, part, first_tiles = cut(ends - firsts, KEYS)
        tiles = np.stack([rows[owner], firsts[owner] + part * KEYS, ends[owner]], axis=1)
        owner, part, _ = cut(counts, height)
        done = part * height
        stretches = [
            batch.query_start[rows][owner] + done,
            (ends - counts)[owner] + done,
            np.minimum(counts[owner] - done, height),
            first_tiles[owner],
            firsts[owner],
        ]
        return tiles, np.stack(stretches, axis=1)

    def new_states(self, meta: Meta) -> torch.Tensor:
        """Working memory of a layer's tasks; a few numbers for each, and not kept, so that `meta` stays as planned."""
        import torch

        from ...kernels.cpu.decode_attention import new_states

        return new_states(len(meta.tasks), self.layer.num_heads, self.layer.head_size, getattr(torch, self.dtype))

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Meta) -> None:
        from ...kernels.cpu.write_kv import write_kv

        write_kv(k, v, cache.k, cache.v, meta.slots)

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Meta, out: torch.Tensor) -> None:
        layer = self.layer
        if len(meta.tasks):
            from ...kernels.cpu.decode_attention import decode_attention

            step = (meta.block_table, meta.tasks, meta.merges, self.new_states(meta))
            decode_attention(q, cache.k, cache.v, *step, out, layer.scale, layer.soft_cap)
        if len(meta.stretches):
            from ...kernels.cpu.prefill_attention import prefill_attention

            cuts = (meta.block_table, meta.tiles, meta.stretches)
            prefill_attention(q, cache.k, cache.v, *cuts, out, layer.scale, layer.window, layer.soft_cap)
        if self.fused is not None and meta.rectangles:
            self.fused.forward(q, cache, (meta.slots, meta.rectangles), out)


def cut(lengths: IntArray, size: int) -> tuple[IntArray, IntArray, IntArray]:
    """Parts of at most `size`: whose each is, the how-manieth of its owner's, and each owner's first part."""
    counts = -(-lengths // size)
    starts = counts.cumsum() - counts
    owner = np.repeat(np.arange(len(lengths)), counts)
    return owner, np.arange(len(owner)) - starts[owner], starts


def is_slower_than_pytorch(dtype: str) -> bool:
    """Whether PyTorch multiplies long rows of this dtype faster: it uses tile registers, and our kernel does not."""
    from ...kernels.cpu.library import usable

    return dtype == "bfloat16" and usable().level_name == "amx_bf16"


def refusal(codec: KVCodec, device: Device) -> Refusal | None:
    """Why the native kernels cannot serve here."""
    from ...kernels.cpu.library import lack

    reasons = []
    if device.type != "cpu":
        reasons.append(f"the native kernels are for the CPU, not for {device.type}")
    if device.dtype not in ("bfloat16", "float32", "float64"):
        reasons.append(f"there are no native kernels for {device.dtype}")
    if codec.name != "none":
        reasons.append(f"the native kernels read KV as it was computed, and here it is stored as {codec.name}")
    if missing := lack():
        reasons.append(missing)
    return Refusal(tuple(reasons)) if reasons else None
