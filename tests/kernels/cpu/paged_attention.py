"""Both kernels of attention called as their reference is: K and V of each row, and which of them a query sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from switchgear.kernels.cpu.decode_attention import decode_attention, new_states
from switchgear.kernels.cpu.prefill_attention import KEYS, most_queries, prefill_attention


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
    num_rows, num_queries, num_heads, _ = q.shape
    table, caches = paged(k, v, visible.any(1), block_size)
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
        *caches,
        table,
        torch.tensor(tasks, dtype=torch.int64).view(-1, 4),
        torch.tensor(merges, dtype=torch.int64),
        new_states(len(tasks), num_heads, q.shape[3], q.dtype),
        out,
        scale,
        soft_cap,
    )
    return out.view(q.shape)


def paged(
    k: torch.Tensor, v: torch.Tensor, is_seen: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """A block table of shuffled blocks, and caches that hold what is seen, `[B, L]`, and NaN elsewhere."""
    num_rows, num_blocks = len(k), -(-k.shape[1] // block_size)
    order = torch.randperm(num_rows * num_blocks + 3, generator=torch.Generator().manual_seed(0))
    table = order[: num_rows * num_blocks].view(num_rows, num_blocks)

    def cached(x: torch.Tensor) -> torch.Tensor:
        cache = x.new_full((len(order), block_size, *x.shape[2:]), torch.nan)
        for row in range(num_rows):
            keys = torch.arange(x.shape[1])[is_seen[row]]
            cache[table[row, keys // block_size], keys % block_size] = x[row, keys]
        return cache

    return table.contiguous(), (cached(k), cached(v))


# -- many queries a row ---------------------------------------------------------------------------------------------


def prefill_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[tuple[Any, ...]]:
    """Groups of any size, head sizes even and odd, queries and contexts on both sides of a tile; windows, soft caps."""
    shapes = ((1, 1, 64), (3, 1, 64), (4, 4, 13), (10, 2, 80), (7, 1, 30), (12, 3, 256), (100, 1, 16))
    for (num_heads, num_kv_heads, size), (num_queries, longest) in product(shapes, ((9, 9), (64, 64), (70, 201))):
        q = random(2, num_queries, num_heads + 2, size)[:, :, 1 : num_heads + 1]
        k, v = (random(2, longest, num_kv_heads, size) for _ in range(2))
        yield q, k, v, causal(num_queries, longest, None), size**-0.5, None
        yield q, k, v, causal(num_queries, longest, 37), size**-0.5, 3.0


def causal(num_queries: int, longest: int, window: int | None) -> torch.Tensor:
    """`[2, Q, L]` which keys the last queries of two rows see, which are as long as each other."""
    positions = torch.arange(longest - num_queries, longest)[:, None]
    visible = torch.arange(longest) <= positions
    if window is not None:
        visible &= torch.arange(longest) > positions - window
    return visible.expand(2, -1, -1)


def attend_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    block_size: int = 5,
    height: int | None = None,
) -> torch.Tensor:
    """As `ops.attention`, of the last queries of each row, of which the last sees all in its window; NaN elsewhere.

    height: queries of a stretch, by default as many as may be.
    """
    num_rows, num_queries, num_heads, size = q.shape
    longest, num_kv_heads = k.shape[1:3]
    table, caches = paged(k, v, visible.any(1), block_size)
    width = int(visible[0, -1].sum())
    first = int(visible[0].any(0).nonzero()[0])
    window = width if width < longest else None
    most = most_queries(num_heads, num_kv_heads, size, q.dtype)
    height = min(height or most, most)
    tiles: list[tuple[int, int, int]] = []
    stretches: list[tuple[int, int, int, int, int]] = []
    for row in range(num_rows):
        for start in range(0, num_queries, height):
            count, position = min(height, num_queries - start), longest - num_queries + start
            stretches.append((row * num_queries + start, position, count, len(tiles), first))
        tiles += [(row, key, longest) for key in range(first, longest, KEYS)]
    flat = q.flatten(0, 1)
    out = torch.full(flat.shape, torch.nan, dtype=q.dtype)
    numbers = torch.tensor(tiles), torch.tensor(stretches)
    prefill_attention(flat, *caches, table, *numbers, out, scale, window, soft_cap)
    return out.view(q.shape)
