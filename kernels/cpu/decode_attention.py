"""Attention of single queries over paged KV, read in place through block tables, a part of the context at a time."""

from __future__ import annotations

import torch

from .elements import ELEMENTS
from .library import native

REFERENCE = "attention"


def new_states(num_tasks: int, num_heads: int, head_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Working memory of so many tasks: their queries and what they found."""
    size = native().functions.switchgear_decode_state_size(head_size)
    return torch.empty(num_tasks, num_heads, size, dtype=torch.promote_types(dtype, torch.float32))


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    tasks: torch.Tensor,
    merges: torch.Tensor,
    states: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    soft_cap: float | None,
) -> None:
    """Fill `out` `[T, H, D]` at some tokens from q `[T, H, D]` and caches `[N, S, K, D]`, which are dense.

    tasks `[P, 4]`: token, row, and the keys that it sees, first and end, whole or in parts that follow each other; one
    whose token is negative is none. merges `[R, 3]`: token, its first task, and how many it has; block_table `[B, W]`.
    All three are int64 and dense.
    states: from `new_states`, written. Heads of q are dense, and so is out.
    """
    library = native()
    num_heads, head_size = q.shape[1:]
    num_slots, num_kv_heads = k_cache.shape[1:3]
    assert num_heads % num_kv_heads == 0 and k_cache.shape == v_cache.shape and k_cache.shape[3] == head_size
    assert q.stride(2) == 1 and out.shape == q.shape and out.dtype == q.dtype == k_cache.dtype == v_cache.dtype
    assert k_cache.is_contiguous() and v_cache.is_contiguous() and out.is_contiguous() and states.is_contiguous()
    assert block_table.is_contiguous() and tasks.is_contiguous() and merges.is_contiguous()
    num_tasks = tasks.shape[0]
    assert states.shape[0] >= num_tasks
    library.functions.switchgear_decode(
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
        tasks.data_ptr(),
        num_tasks,
        merges.data_ptr(),
        merges.shape[0],
        states.data_ptr(),
        out.data_ptr(),
        num_heads,
        num_kv_heads,
        head_size,
        scale,
        soft_cap or 0.0,
        ELEMENTS[q.dtype],
        library.level,
        torch.get_num_threads(),
    )
