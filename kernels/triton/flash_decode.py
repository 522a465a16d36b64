"""Attention of few queries a row over a paged cache, with the context split among programs (Flash-Decoding).

Each program leaves what it found in its part of the keys, and the logarithm of what its weights sum to; a second kernel
merges the parts by these. What changes from step to step is on the device: the grid depends on none of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._online_softmax import attend

REFERENCE = "attention"

MAX_SPLITS = 64


def default_splits(num_rows: int, num_kv_heads: int, longest: int, num_processors: int) -> int:
    """Parts of the context: enough for two programs a processor, none much shorter than 128 keys.

    A power of two: each number is a kernel of its own to compile.
    """
    wanted = -(-2 * num_processors // (num_rows * num_kv_heads))
    return min(MAX_SPLITS, int(triton.next_power_of_2(max(1, min(wanted, -(-longest // 256))))))


def default_tile_k(dtype: torch.dtype) -> int:
    """Keys in a tile that fits the shared memory of sm_80 twice, for heads of up to 256 elements."""
    return 64 if dtype.itemsize <= 4 else 16


def flash_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    max_queries: int,
    num_splits: int,
    tile_k: int | None = None,
) -> None:
    """Fill `out` `[T, H, D]` for the queries of some rows from q `[T, H, D]` and caches `[N, K, S, D]`.

    rows: `[P]`, none with more than `max_queries` queries; query_start `[B + 1]`, context_lens `[B]`, block_table
    `[B, W]`: as in `Batch`, int32. Heads of q and out and the last axis of the caches are dense, and both caches have
    the same strides. Takes `P * max_queries * H * num_splits * (D + 1)` numbers of working memory.
    """
    num_heads, head_size = q.shape[1:]
    num_kv_heads, num_slots = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    assert group * num_kv_heads == num_heads and k_cache.shape == v_cache.shape and k_cache.shape[3] == head_size
    assert q.stride(2) == out.stride(2) == k_cache.stride(3) == 1 and out.shape == q.shape
    assert k_cache.stride() == v_cache.stride() and block_table.stride(1) == 1
    assert all(x.is_contiguous() for x in (rows, query_start, context_lens))
    wide = torch.promote_types(q.dtype, torch.float32)
    parts = q.new_empty((len(rows), max_queries, num_heads, num_splits, head_size), dtype=wide)
    sums = q.new_empty(parts.shape[:-1], dtype=wide)
    padded_size = max(16, triton.next_power_of_2(head_size))
    decode_kernel[(len(rows), num_kv_heads, num_splits)](
        q,
        k_cache,
        v_cache,
        rows,
        query_start,
        context_lens,
        block_table,
        parts,
        sums,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_table.stride(0),
        GROUP=group,
        MAX_QUERIES=max_queries,
        NUM_SPLITS=num_splits,
        HEAD_SIZE=head_size,
        PADDED_SIZE=padded_size,
        SLOTS=num_slots,
        TILE_Q=max(16, triton.next_power_of_2(group * max_queries)),
        TILE_K=tile_k or default_tile_k(q.dtype),
        SCALE=scale,
        WINDOW=window,
        SOFT_CAP=soft_cap,
        IS_DOUBLE=q.dtype == torch.float64,
        num_warps=4,
    )
    merge_kernel[(len(rows) * max_queries, num_heads)](
        parts,
        sums,
        rows,
        query_start,
        out,
        out.stride(0),
        out.stride(1),
        NUM_HEADS=num_heads,
        MAX_QUERIES=max_queries,
        NUM_SPLITS=num_splits,
        PADDED_SPLITS=triton.next_power_of_2(num_splits),
        HEAD_SIZE=head_size,
        PADDED_SIZE=padded_size,
        num_warps=4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def decode_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    context_lens_ptr: tl.tensor,
    table_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    stride_q_token: int,
    stride_q_head: int,
    stride_block: int,
    stride_kv_head: int,
    stride_slot: int,
    stride_table: int,
    GROUP: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
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
    place, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows_ptr + place)
    first_token = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - first_token
    context = tl.load(context_lens_ptr + row)
    before = context - num_queries

    lane = tl.arange(0, TILE_Q)
    queries = lane // GROUP
    is_query = queries < num_queries
    heads = kv_head * GROUP + lane % GROUP
    elements = tl.arange(0, PADDED_SIZE)
    is_inside = is_query[:, None] & (elements < HEAD_SIZE)[None, :]
    q_offsets = (first_token + queries).to(tl.int64) * stride_q_token + heads * stride_q_head
    q = tl.load(q_ptr + q_offsets[:, None] + elements[None, :], mask=is_inside, other=0.0)

    positions = before + queries
    first_seen = 0
    if WINDOW is not None:
        first_seen = tl.maximum(before - WINDOW + 1, 0)
    num_tiles = tl.cdiv(context - first_seen, TILE_K)
    length = tl.cdiv(num_tiles, NUM_SPLITS) * TILE_K
    start = tl.minimum(first_seen + split * length, context)
    end = tl.minimum(start + length, context)
    # up to here every query sees every key
    all_seen = start
    if WINDOW is None:
        all_seen = tl.maximum(start, start + (tl.minimum(end, before + 1) - start) // TILE_K * TILE_K)
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
        *(state, q, positions, k_ptr, v_ptr, table_ptr, start, all_seen, stride_block, stride_slot),
        *(HEAD_SIZE, PADDED_SIZE, SLOTS, TILE_K, False, SCALE, WINDOW, SOFT_CAP),
    )
    acc, largest, total = attend(
        *(state, q, positions, k_ptr, v_ptr, table_ptr, all_seen, end, stride_block, stride_slot),
        *(HEAD_SIZE, PADDED_SIZE, SLOTS, TILE_K, True, SCALE, WINDOW, SOFT_CAP),
    )
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    # -inf where nothing was seen: log2(0), which a compiler may not promise
    log_sum = tl.where(total == 0.0, float("-inf"), largest + tl.log2(tl.where(total == 0.0, 1.0, total)))
    num_heads = tl.num_programs(1) * GROUP
    part = ((place * MAX_QUERIES + queries) * num_heads + heads).to(tl.int64) * NUM_SPLITS + split
    tl.store(parts_ptr + part[:, None] * HEAD_SIZE + elements[None, :], acc, mask=is_inside)
    tl.store(sums_ptr + part, log_sum, mask=is_query)


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(
    parts_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    out_ptr: tl.tensor,
    stride_out_token: int,
    stride_out_head: int,
    NUM_HEADS: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
) -> None:
    place, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + place // MAX_QUERIES)
    query = place % MAX_QUERIES
    first_token = tl.load(query_start_ptr + row)
    is_query = query < tl.load(query_start_ptr + row + 1) - first_token

    splits = tl.arange(0, PADDED_SPLITS)
    elements = tl.arange(0, PADDED_SIZE)
    part = (place * NUM_HEADS + head).to(tl.int64) * NUM_SPLITS + splits
    is_part = is_query & (splits < NUM_SPLITS)
    is_element = elements < HEAD_SIZE
    sums = tl.load(sums_ptr + part, mask=is_part, other=float("-inf"))
    largest = tl.max(sums, 0)
    weights = tl.exp2(sums - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    parts = tl.load(
        parts_ptr + part[:, None] * HEAD_SIZE + elements[None, :],
        mask=is_part[:, None] & is_element[None, :],
        other=0.0,
    )
    merged = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    token = (first_token + query).to(tl.int64)
    tl.store(
        out_ptr + token * stride_out_token + head * stride_out_head + elements,
        merged.to(out_ptr.dtype.element_ty),
        mask=is_element & is_query,
    )
