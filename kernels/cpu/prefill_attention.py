"""Attention of many queries a row over paged KV, in tiles of queries and keys; no more scores exist than a tile's."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "attention"

KEYS = 64
"""Of a packed tile, as in prefill.h."""


def most_queries(num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> int:
    """Queries that a stretch may have."""
    count: int = native().functions.switchgear_prefill_num_queries(
        num_heads // num_kv_heads, head_size, ELEMENTS[dtype]
    )
    return count


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    tiles: torch.Tensor,
    queries: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """Fill `out` `[T, H, D]` at some tokens from q `[T, H, D]` and caches `[N, S, K, D]`, which are dense.

    tiles `[P, 3]`: row, first key and end of the row's keys, of every `KEYS` keys of a row from the first one that it
    sees; queries `[R, 5]`: first token of a stretch of a row, its position, how many (see `most_queries`), the row's
    first tile and its first key; block_table `[B, W]`. All three are int64 and dense. Heads of q are dense, and so is
    out. Takes working memory for a copy of the keys and values that the rows see.
    """
    library = native()
    num_heads, head_size = q.shape[1:]
    num_slots, num_kv_heads = k_cache.shape[1:3]
    assert num_heads % num_kv_heads == 0 and k_cache.shape == v_cache.shape and k_cache.shape[3] == head_size
    assert q.stride(2) == 1 and out.shape == q.shape and out.dtype == q.dtype == k_cache.dtype == v_cache.dtype
    assert k_cache.is_contiguous() and v_cache.is_contiguous() and out.is_contiguous()
    assert block_table.is_contiguous() and tiles.is_contiguous() and queries.is_contiguous()
    element = ELEMENTS[q.dtype]
    size = library.functions.switchgear_prefill_tile_size(num_kv_heads, head_size, element, library.level)
    packed = q.new_empty((len(tiles), size // q.itemsize))
    library.functions.switchgear_prefill(
        q.data_ptr(),
        q.stride(0),
        q.stride(1),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        num_slots,
        block_table.data_ptr(),
        block_table.shape[1],
        tiles.data_ptr(),
        len(tiles),
        queries.data_ptr(),
        len(queries),
        packed.data_ptr(),
        out.data_ptr(),
        num_heads,
        num_kv_heads,
        head_size,
        window or 0,
        scale,
        soft_cap or 0.0,
        element,
        library.level,
        torch.get_num_threads(),
    )
