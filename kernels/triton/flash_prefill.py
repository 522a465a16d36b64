"""Attention of many queries a row over a paged cache: a program takes a tile of queries and one KV head.

The query heads that share a KV head stand in the tile together, so that its K and V are read once for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._online_softmax import attend

REFERENCE = "attention"


def queries_per_tile(group: int, tile_q: int) -> int:
    """Queries in a tile of `tile_q` rows, where each has `group` heads."""
    rows: int = max(tile_q, triton.next_power_of_2(group))
    return rows // group


def default_tiles(head_size: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """(rows, keys, warps) of a tile that fits the shared memory of sm_80, with room to load ahead."""
    size = triton.next_power_of_2(head_size) * dtype.itemsize
    if dtype.itemsize > 2:
        return (32, 32, 4) if dtype.itemsize == 4 else (16, 16, 4)
    if size <= 128:
        return 128, 64, 4
    return (128, 64, 8) if size <= 256 else (64, 32, 4)


def flash_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    tile_rows: torch.Tensor,
    tile_starts: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    tiles: tuple[int, int, int],
) -> None:
    """Fill `out` `[T, H, D]` for the queries of some tiles from q `[T, H, D]` and caches `[N, K, S, D]`.

    tile_rows, tile_starts: `[P]` the row of each tile and its first query, a multiple of `queries_per_tile`;
    query_start `[B + 1]`, context_lens `[B]`, block_table `[B, W]`: as in `Batch`, int32; tiles: (rows, keys, warps).
    Heads of q and out and the last axis of the caches are dense, and both caches have the same strides.
    """
    num_heads, head_size = q.shape[1:]
    num_kv_heads, num_slots = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    assert group * num_kv_heads == num_heads and k_cache.shape == v_cache.shape and k_cache.shape[3] == head_size
    assert q.stride(2) == out.stride(2) == k_cache.stride(3) == 1 and out.shape == q.shape
    assert k_cache.stride() == v_cache.stride() and block_table.stride(1) == 1
    assert all(x.is_contiguous() for x in (tile_rows, tile_starts, query_start, context_lens))
    tile_q, tile_k, num_warps = tiles
    prefill_kernel[(len(tile_rows), num_kv_heads)](
        q,
        k_cache,
        v_cache,
        tile_rows,
        tile_starts,
        query_start,
        context_lens,
        block_table,
        out,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_table.stride(0),
        out.stride(0),
        out.stride(1),
        GROUP=group,
        HEAD_SIZE=head_size,
        PADDED_SIZE=max(16, triton.next_power_of_2(head_size)),
        SLOTS=num_slots,
        TILE_Q=max(tile_q, triton.next_power_of_2(group)),
        TILE_K=tile_k,
        SCALE=scale,
        WINDOW=window,
        SOFT_CAP=soft_cap,
        IS_DOUBLE=q.dtype == torch.float64,
        num_warps=num_warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def prefill_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    tile_rows_ptr: tl.tensor,
    tile_starts_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    context_lens_ptr: tl.tensor,
    table_ptr: tl.tensor,
    out_ptr: tl.tensor,
    stride_q_token: int,
    stride_q_head: int,
    stride_block: int,
    stride_kv_head: int,
    stride_slot: int,
    stride_table: int,
    stride_out_token: int,
    stride_out_head: int,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> None:
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows_ptr + tile)
    start = tl.load(tile_starts_ptr + tile)
    first_token = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - first_token
    before = tl.load(context_lens_ptr + row) - num_queries

    lane = tl.arange(0, TILE_Q)
    queries = start + lane // GROUP
    is_query = (lane < TILE_Q // GROUP * GROUP) & (queries < num_queries)
    tokens = (first_token + queries).to(tl.int64)
    heads = kv_head * GROUP + lane % GROUP
    elements = tl.arange(0, PADDED_SIZE)
    is_inside = is_query[:, None] & (elements < HEAD_SIZE)[None, :]
    q_offsets = tokens * stride_q_token + heads * stride_q_head
    q = tl.load(q_ptr + q_offsets[:, None] + elements[None, :], mask=is_inside, other=0.0)

    positions = before + queries
    first_seen = 0
    if WINDOW is not None:
        first_seen = tl.maximum(before + start - WINDOW + 1, 0)
    end = before + tl.minimum(start + TILE_Q // GROUP, num_queries)
    # up to here every query of the tile sees every key
    all_seen = first_seen
    if WINDOW is None:
        all_seen = (before + start + 1) // TILE_K * TILE_K
    wide = tl.float64 if IS_DOUBLE else tl.float32
    state = (
        tl.zeros([TILE_Q, PADDED_SIZE], wide),
        tl.full([TILE_Q], float("-inf"), wide),
        tl.zeros([TILE_Q], wide),
    )
    k_ptr += kv_head * stride_kv_head
    v_ptr += kv_head * stride_kv_head
    table_ptr += row * stride_table
    state = attend(
        *(state, q, positions, k_ptr, v_ptr, table_ptr, first_seen, all_seen, stride_block, stride_slot),
        *(HEAD_SIZE, PADDED_SIZE, SLOTS, TILE_K, False, SCALE, WINDOW, SOFT_CAP),
    )
    acc, _, total = attend(
        *(state, q, positions, k_ptr, v_ptr, table_ptr, all_seen, end, stride_block, stride_slot),
        *(HEAD_SIZE, PADDED_SIZE, SLOTS, TILE_K, True, SCALE, WINDOW, SOFT_CAP),
    )
    # a query that sees nothing gets zeros
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_offsets = tokens * stride_out_token + heads * stride_out_head
    tl.store(out_ptr + out_offsets[:, None] + elements[None, :], acc.to(out_ptr.dtype.element_ty), mask=is_inside)
