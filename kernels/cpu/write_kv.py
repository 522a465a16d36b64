"""Stores the K and V of a step where its slots say."""

from __future__ import annotations

import torch

from .library import native

REFERENCE = "write_kv"


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """As the reference, but into caches `[N, S, K, D]`, which are dense: k and v `[T, K, D]` with dense tokens, slots
    `[T]` int64.
    """
    num_tokens, num_heads, size = k.shape
    assert k.shape == v.shape and all(x[0].is_contiguous() for x in (k, v) if num_tokens)
    assert k_cache.shape == v_cache.shape and k_cache.shape[2:] == (num_heads, size) and slots.shape == (num_tokens,)
    assert k_cache.is_contiguous() and v_cache.is_contiguous() and slots.is_contiguous()
    assert k.dtype == v.dtype == k_cache.dtype == v_cache.dtype
    native().functions.switchgear_write_kv(
        k.data_ptr(),
        k.stride(0) * k.itemsize,
        v.data_ptr(),
        v.stride(0) * v.itemsize,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        slots.data_ptr(),
        num_tokens,
        num_heads * size * k.itemsize,
        torch.get_num_threads(),
    )
