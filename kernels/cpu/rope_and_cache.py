"""Rotary positions of queries and keys, and the K and V of a step where its slots say, in one call."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

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
    """As the reference, but into caches `[N, S, K, D]`, which are dense. Heads of q `[T, H, D]`, k and v `[T, K, D]`
    are dense, and so are cos and sin `[T, R / 2]` with R <= D and slots `[T]` int64; all floats have one dtype.
    """
    library = native()
    num_tokens, num_heads, size = q.shape
    num_kv_heads, half = k.shape[1], cos.shape[1]
    assert k.shape == v.shape == (num_tokens, num_kv_heads, size) and q.stride(2) == k.stride(2) == v.stride(2) == 1
    assert cos.shape == sin.shape == (num_tokens, half) and 2 * half <= size
    assert cos.is_contiguous() and sin.is_contiguous() and slots.shape == (num_tokens,) and slots.is_contiguous()
    assert k_cache.shape == v_cache.shape and k_cache.shape[2:] == (num_kv_heads, size)
    assert k_cache.is_contiguous() and v_cache.is_contiguous()
    assert q.dtype == k.dtype == v.dtype == cos.dtype == sin.dtype == k_cache.dtype == v_cache.dtype
    out = q.new_empty(q.shape)
    library.functions.switchgear_rope_and_cache(
        q.data_ptr(),
        q.stride(0),
        q.stride(1),
        k.data_ptr(),
        k.stride(0),
        k.stride(1),
        v.data_ptr(),
        v.stride(0),
        v.stride(1),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        slots.data_ptr(),
        num_tokens,
        num_heads,
        num_kv_heads,
        size,
        half,
        ELEMENTS[q.dtype],
        library.level,
        torch.get_num_threads(),
    )
    return out
