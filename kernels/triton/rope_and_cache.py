"""Rotary positions of queries and keys, and the K and V of a step where its slots say: a program takes a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._rotary import turned

REFERENCE = "rope_and_cache"


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """As the reference, into caches `[N, K, S, D]` of equal strides. Heads of q `[T, H, D]`, k and v `[T, K, D]` are
    dense, and so are cos and sin `[T, R / 2]` with R <= D and slots `[T]`, of any integers.
    """
    num_tokens, num_heads, size = q.shape
    num_kv_heads, half = k.shape[1], cos.shape[1]
    assert k.shape == v.shape == (num_tokens, num_kv_heads, size) and q.stride(2) == k.stride(2) == v.stride(2) == 1
    assert cos.shape == sin.shape == (num_tokens, half) and 2 * half <= size
    assert cos.is_contiguous() and sin.is_contiguous() and slots.shape == (num_tokens,) and slots.is_contiguous()
    assert k_cache.shape == v_cache.shape and k_cache.stride() == v_cache.stride() and k_cache.stride(3) == 1
    assert k_cache.shape[1] == num_kv_heads and k_cache.shape[3] == size
    out = q.new_empty(q.shape)
    rope_and_cache_kernel[(num_tokens,)](
        q,
        k,
        v,
        cos,
        sin,
        out,
        k_cache,
        v_cache,
        slots,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        NUM_HEADS=num_heads,
        PADDED_HEADS=triton.next_power_of_2(num_heads),
        NUM_KV_HEADS=num_kv_heads,
        PADDED_KV_HEADS=triton.next_power_of_2(num_kv_heads),
        SIZE=size,
        PADDED_SIZE=triton.next_power_of_2(size),
        HALF=half,
        SLOTS=k_cache.shape[2],
        IS_DOUBLE=q.dtype == torch.float64,
        num_warps=4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def rope_and_cache_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    out_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    stride_q_token: int,
    stride_q_head: int,
    stride_k_token: int,
    stride_k_head: int,
    stride_v_token: int,
    stride_v_head: int,
    stride_block: int,
    stride_kv_head: int,
    stride_slot: int,
    NUM_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PADDED_KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    SLOTS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    elements = tl.arange(0, PADDED_SIZE)[None, :]
    cos_ptr += token * HALF
    sin_ptr += token * HALF

    heads = tl.arange(0, PADDED_HEADS)[:, None]
    is_inside = (heads < NUM_HEADS) & (elements < SIZE)
    source = q_ptr + token * stride_q_token + heads * stride_q_head
    q = turned(source, cos_ptr, sin_ptr, elements, is_inside, HALF, IS_DOUBLE)
    target = (token * NUM_HEADS + heads) * SIZE + elements
    tl.store(out_ptr + target, q.to(out_ptr.dtype.element_ty), mask=is_inside)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    heads = tl.arange(0, PADDED_KV_HEADS)[:, None]
    is_inside = (heads < NUM_KV_HEADS) & (elements < SIZE)
    place = slot // SLOTS * stride_block + slot % SLOTS * stride_slot + heads * stride_kv_head + elements
    source = k_ptr + token * stride_k_token + heads * stride_k_head
    k = turned(source, cos_ptr, sin_ptr, elements, is_inside, HALF, IS_DOUBLE)
    tl.store(k_cache_ptr + place, k.to(k_cache_ptr.dtype.element_ty), mask=is_inside)
    v = tl.load(v_ptr + token * stride_v_token + heads * stride_v_head + elements, mask=is_inside)
    tl.store(v_cache_ptr + place, v, mask=is_inside)
