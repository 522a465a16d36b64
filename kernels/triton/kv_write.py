"""Stores the K and V of a step where its slots say, both in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

REFERENCE = "write_kv"


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """As the reference, into caches `[N, K, S, D]`: k and v `[T, K, D]` with dense heads, slots `[T]` int32."""
    num_tokens, num_heads, size = k.shape
    assert k.shape == v.shape and k.stride(2) == v.stride(2) == k_cache.stride(3) == 1
    assert k_cache.shape == v_cache.shape and k_cache.stride() == v_cache.stride()
    assert k_cache.shape[1] == num_heads and k_cache.shape[3] == size and slots.shape == (num_tokens,)
    assert slots.is_contiguous()
    write_kernel[(num_tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        NUM_HEADS=num_heads,
        PADDED_HEADS=triton.next_power_of_2(num_heads),
        SIZE=size,
        PADDED_SIZE=triton.next_power_of_2(size),
        SLOTS=k_cache.shape[2],
        num_warps=4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def write_kernel(
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    stride_k_token: int,
    stride_k_head: int,
    stride_v_token: int,
    stride_v_head: int,
    stride_block: int,
    stride_kv_head: int,
    stride_slot: int,
    NUM_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    elements = tl.arange(0, PADDED_SIZE)[None, :]
    is_inside = (heads < NUM_HEADS) & (elements < SIZE)
    target = (slot // SLOTS).to(tl.int64) * stride_block + (slot % SLOTS) * stride_slot
    target += heads * stride_kv_head + elements
    k = tl.load(k_ptr + token * stride_k_token + heads * stride_k_head + elements, mask=is_inside)
    v = tl.load(v_ptr + token * stride_v_token + heads * stride_v_head + elements, mask=is_inside)
    tl.store(k_cache_ptr + target, k, mask=is_inside)
    tl.store(v_cache_ptr + target, v, mask=is_inside)
