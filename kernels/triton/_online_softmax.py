"""What attention kernels share: one tile of queries over a range of keys, with the softmax taken as scores come."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def attend(
    state: tl.tuple,  # (acc `[M, D]`, largest `[M]`, total `[M]`) of the keys before
    q: tl.tensor,  # `[M, D]`
    positions: tl.tensor,  # `[M]` of the queries
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,  # of the KV head, `[N, S, D]`
    table_ptr: tl.tensor,  # of the row, its blocks in order
    start: tl.tensor,
    end: tl.tensor,  # the keys
    stride_block: int,
    stride_slot: int,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE_K: tl.constexpr,
    IS_MASKED: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> tl.tuple:
    """The state after keys start to end. Scores are kept in powers of two; IS_MASKED is for what a query cannot see.

    Keys from `end` on are not read: what lies there may be no number. Without IS_MASKED, end - start is a multiple of
    TILE_K and every query sees every key.
    """
    acc, largest, total = state
    elements = tl.arange(0, PADDED_SIZE)
    is_element = elements < HEAD_SIZE
    for first in range(start, end, TILE_K):
        keys = first + tl.arange(0, TILE_K)
        is_key = keys < end
        blocks = tl.load(table_ptr + keys // SLOTS, mask=is_key, other=0).to(tl.int64)
        offsets = blocks * stride_block + (keys % SLOTS) * stride_slot
        k = tl.load(k_ptr + offsets[None, :] + elements[:, None], mask=is_key[None, :] & is_element[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee", out_dtype=acc.dtype) * SCALE
        if SOFT_CAP is not None:
            # tanh, in a form that no score overflows
            shrunk = tl.exp(-2.0 / SOFT_CAP * tl.abs(scores))
            capped = SOFT_CAP * (1.0 - shrunk) / (1.0 + shrunk)
            scores = tl.where(scores < 0, -capped, capped)
        scores = scores * LOG2_E
        if IS_MASKED:
            is_seen = is_key[None, :] & (keys[None, :] <= positions[:, None])
            if WINDOW is not None:
                is_seen = is_seen & (keys[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(is_seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # where nothing was seen yet the largest is -inf, and -inf - -inf is not a number
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(v_ptr + offsets[:, None] + elements[None, :], mask=is_key[:, None] & is_element[None, :], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee", out_dtype=acc.dtype)
        largest = larger
    return acc, largest, total
