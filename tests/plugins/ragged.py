"""A step of ragged rows over a paged cache, for attention by itself: shuffled blocks, and NaN wherever no row looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from switchgear.core.defaults import GatheredAttention, StoredAsComputed
from switchgear.core.records import NO_ROWS, Batch, KVCache, LayerSpec

Row = tuple[int, int]
"""Queries of a row, and tokens in its cache after the step."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one layer gets in one step."""

    layer: LayerSpec
    batch: Batch
    cache: KVCache
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def run(self, impl: Any) -> torch.Tensor:
        """`[T, H, D]`, from a cache of its own."""
        axes = ["NSKD".index(axis) for axis in impl.layout]
        cache = KVCache(*(x.permute(axes).contiguous() for x in (self.cache.k, self.cache.v)))
        meta = impl.plan(self.batch, 0)
        impl.write(self.k, self.v, cache, meta)
        out = torch.full_like(self.q, torch.nan)
        impl.forward(self.q, cache, meta, out)
        return out

    def of(self, rows: Sequence[int]) -> tuple[Step, torch.Tensor]:
        """The same step with these rows in this order; and which of its tokens were which of the whole's."""
        start, lens = self.batch.query_start, self.batch.query_lens[rows]
        tokens = np.concatenate([np.arange(start[row], start[row + 1]) for row in rows])
        batch = replace(
            self.batch,
            rows=self.batch.rows[rows],
            token_ids=self.batch.token_ids[tokens],
            positions=self.batch.positions[tokens],
            query_start=np.concatenate([[0], lens.cumsum()]),
            context_lens=self.batch.context_lens[rows],
            num_drafts=self.batch.num_drafts[rows],
            block_tables=(self.batch.block_tables[0][rows],),
            slots=(self.batch.slots[0][tokens],),
        )
        chosen = torch.from_numpy(tokens)
        return Step(self.layer, batch, self.cache, self.q[chosen], self.k[chosen], self.v[chosen]), chosen

    def exact(self) -> torch.Tensor:
        """What everything-off gives, in float64."""
        wide = [x.double() for x in (self.cache.k, self.cache.v, self.q, self.k, self.v)]
        step = Step(self.layer, self.batch, KVCache(*wide[:2]), *wide[2:])
        return step.run(self.eager("float64"))

    def eager(self, dtype: str) -> Any:
        codec: Any = StoredAsComputed(dtype)
        return GatheredAttention(self.layer, codec, self.q.device.type)


def make_step(
    layer: LayerSpec,
    rows: Sequence[Row],
    *,
    block_size: int = 4,
    dtype: str = "float64",
    seed: int = 0,
    by: float = 1,
    device: str = "cpu",
) -> Step:
    """The step's own K and V are still to be written. by: a factor on queries, for scores of that size."""
    generator = np.random.default_rng(seed)
    query_lens, context_lens = (np.array(numbers, dtype=np.int64) for numbers in zip(*rows, strict=True))
    num_blocks = -(-context_lens // block_size)
    table = np.zeros((len(rows), num_blocks.max()), dtype=np.int64)
    table[np.arange(table.shape[1]) < num_blocks[:, None]] = generator.permutation(num_blocks.sum() + 2)[2:]
    query_start = np.concatenate([[0], query_lens.cumsum()])
    row_of = np.repeat(np.arange(len(rows)), query_lens)
    positions = np.concatenate([np.arange(end - count, end) for count, end in rows])
    slots = table[row_of, positions // block_size] * block_size + positions % block_size
    batch = Batch(
        step=0,
        rows=np.arange(len(rows)),
        token_ids=np.zeros(len(positions), dtype=np.int64),
        positions=positions,
        query_start=query_start,
        context_lens=context_lens,
        num_drafts=np.zeros(len(rows), dtype=np.int64),
        block_tables=(table,),
        slots=(slots,),
        block_size=block_size,
        copies=(),
        outputs=query_start[1:] - 1,
        scored=NO_ROWS,
        targets=NO_ROWS,
    )

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(shape)).to(device, getattr(torch, dtype))

    shape = (int(num_blocks.sum()) + 2, block_size, layer.num_kv_heads, layer.head_size)
    cache = KVCache(draw(*shape), draw(*shape))
    seen = np.zeros(shape[:2], dtype=np.bool_)
    for blocks, count, end in zip(table, query_lens, context_lens, strict=True):
        first = 0 if layer.window is None else max(0, end - count - layer.window + 1)
        at = np.arange(first, end - count)
        seen[blocks[at // block_size], at % block_size] = True
    for x in (cache.k, cache.v):
        x[torch.from_numpy(~seen).to(device)] = torch.nan
    num_tokens = len(positions)
    q = draw(num_tokens, layer.num_heads, layer.head_size) * by
    # as the decoder has them: parts of one product
    k, v = draw(num_tokens, 2 * layer.num_kv_heads, layer.head_size).chunk(2, dim=1)
    return Step(layer, batch, cache, q, k, v)
