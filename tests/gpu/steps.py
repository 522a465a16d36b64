"""Steps of equal rows over a paged cache, as the engine would make them, without an engine."""

from __future__ import annotations

import numpy as np
from switchgear.core.records import NO_ROWS, Batch


def batch_of(
    num_rows: int, num_queries: int, context: int, block_size: int, *, is_shuffled: bool = True, step: int = 0
) -> Batch:
    """num_rows rows that compute their last `num_queries` of `context` tokens, in one KV group.

    is_shuffled: a row's blocks lie anywhere, as after a while in use; else one behind the other.
    """
    num_blocks = -(-context // block_size)
    blocks = np.arange(num_rows * num_blocks)
    if is_shuffled:
        blocks = np.random.default_rng(0).permutation(blocks)
    table = blocks.reshape(num_rows, num_blocks)
    rows = np.repeat(np.arange(num_rows), num_queries)
    positions = np.tile(np.arange(context - num_queries, context), num_rows)
    query_start = np.arange(num_rows + 1) * num_queries
    return Batch(
        step=step,
        rows=np.arange(num_rows),
        token_ids=(np.arange(len(rows)) + 7 * step) % 256,
        positions=positions,
        query_start=query_start,
        context_lens=np.full(num_rows, context),
        num_drafts=np.zeros(num_rows, dtype=np.int64),
        block_tables=(table,),
        slots=(table[rows, positions // block_size] * block_size + positions % block_size,),
        block_size=block_size,
        copies=(),
        outputs=query_start[1:] - 1,
        scored=NO_ROWS,
        targets=NO_ROWS,
    )
