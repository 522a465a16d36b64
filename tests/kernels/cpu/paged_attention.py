"""`decode_attention` called as its reference is: K and V of each row, and which of them a query sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from switchgear.kernels.cpu.decode_attention import decode_attention, new_states


def attention_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[tuple[Any, ...]]:
    """Groups of any size, head sizes even and odd, contexts on both sides of a tile of 32 keys; windows, soft caps."""
    shapes = ((1, 1, 64), (3, 1, 64), (4, 4, 13), (10, 2, 80), (7, 1, 30), (12, 3, 256))
    for (num_heads, num_kv_heads, size), lengths in product(shapes, ((1,), (31, 32, 33), (5, 200))):
        longest = max(lengths)
        q = random(len(lengths), 1, num_heads + 2, size)[:, :, 1 : num_heads + 1]
        k, v = (random(len(lengths), longest, num_kv_heads, size) for _ in range(2))
        keys = torch.arange(longest)
        behind = keys < torch.tensor(lengths)[:, None, None]
        yield q, k, v, behind, size**-0.5, None
        in_window = behind & (keys >= torch.tensor(lengths)[:, None, None] - 9)
        yield q, k, v, in_window, size**-0.5, 3.0


def attend_paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    block_size: int = 5,
    part: int = 48,
) -> torch.Tensor:
    """As `ops.attention`, where each query sees a stretch of keys: through shuffled blocks, in parts of so many keys.

    All that no query sees is NaN.
    """
    num_rows, num_queries, num_heads, head_size = q.shape
    num_blocks = -(-k.shape[1] // block_size)
    order = torch.randperm(num_rows * num_blocks + 3, generator=torch.Generator().manual_seed(0))
    table = order[: num_rows * num_blocks].view(num_rows, num_blocks)
    is_seen = visible.any(1)
    caches = []
    for x in (k, v):
        cache = x.new_full((len(order), block_size, *x.shape[2:]), torch.nan)
        for row in range(num_rows):
            keys = torch.arange(x.shape[1])[is_seen[row]]
            cache[table[row, keys // block_size], keys % block_size] = x[row, keys]
        caches.append(cache)
    tasks: list[tuple[int, int, int, int]] = []
    merges: list[tuple[int, int, int]] = []
    for token in range(num_rows * num_queries):
        row = token // num_queries
        seen = visible[row, token % num_queries].nonzero().flatten().tolist()
        first, end = (seen[0], seen[-1] + 1) if seen else (0, 0)
        assert len(seen) == end - first
        parts = [(token, row, start, min(start + part, end)) for start in range(first, end, part)]
        merges.append((token, len(tasks), len(parts)))
        tasks += parts
    flat = q.flatten(0, 1)
    out = torch.full(flat.shape, torch.nan, dtype=q.dtype)
    decode_attention(
        flat,
        caches[0],
        caches[1],
        table.contiguous(),
        torch.tensor(tasks, dtype=torch.int64).view(-1, 4),
        torch.tensor(merges, dtype=torch.int64),
        new_states(len(tasks), num_heads, head_size, q.dtype),
        out,
        scale,
        soft_cap,
    )
    return out.view(q.shape)
