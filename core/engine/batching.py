"""From chosen sequences to the flat arrays that a worker runs."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from ..records import NO_RANGES, NO_ROWS, Batch, BlockCopy, Draft, IntArray
from .driver import Chosen
from .sequence import Sequence


def make_batch(
    step: int,
    chosen: Rows[Chosen],
    sampling: IntArray,
    copies: Rows[BlockCopy],
    draft: Draft,
    block_size: int,
    num_groups: int,
) -> Batch:
    """Flatten the step. A row's drafts follow its known tokens; `draft` has one entry for each chosen row.

    sampling: indices of the chosen rows that sample; num_groups: whose block tables the batch carries.
    """
    num_drafts = draft.lens
    has_drafts = draft.tokens.shape[1] > 0
    sequences = [wish.sequence for wish in chosen]
    num_known = np.array([wish.num_tokens for wish in chosen], dtype=np.int64)
    starts = np.array([sequence.num_computed for sequence in sequences], dtype=np.int64)
    query_lens = num_known + num_drafts if has_drafts else num_known
    query_start = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(query_lens, out=query_start[1:])
    num_tokens = int(query_start[-1])
    row_of = np.arange(len(chosen))
    if num_tokens == len(chosen):
        # most steps: one token a row
        positions = starts
    else:
        row_of = np.repeat(row_of, query_lens)
        positions = np.arange(num_tokens) + (starts - query_start[:-1])[row_of]
    tables = tuple(stack_tables(sequences, group) for group in range(num_groups))
    slots = tuple(table[row_of, positions // block_size] * block_size + positions % block_size for table in tables)
    has_scores = any([sequence.params.prompt_logprobs is not None for sequence in sequences])
    has_pooling = any([sequence.pooling for sequence in sequences])
    scored, targets = scored_positions(chosen, query_start) if has_scores else (NO_ROWS, NO_ROWS)
    return Batch(
        step=step,
        rows=np.array([sequence.row for sequence in sequences], dtype=np.int64),
        token_ids=np.concatenate(
            [tokens_of(wish, draft, index) for index, wish in enumerate(chosen)]
            if has_drafts
            else [known_tokens(wish) for wish in chosen]
        ),
        positions=positions,
        query_start=query_start,
        context_lens=starts + query_lens,
        num_drafts=num_drafts,
        block_tables=tables,
        slots=slots,
        block_size=block_size,
        copies=tuple(copies),
        outputs=output_positions(sampling, query_start, num_drafts) if has_drafts else query_start[sampling + 1] - 1,
        scored=scored,
        targets=targets,
        num_top=max(sequence.params.prompt_logprobs or 0 for sequence in sequences) if has_scores else 0,
        pooled=pooled_ranges(chosen, query_start) if has_pooling else NO_RANGES,
    )


def known_tokens(wish: Chosen) -> IntArray:
    start = wish.sequence.num_computed
    return wish.sequence.tokens.view[start : start + wish.num_tokens]


def tokens_of(wish: Chosen, draft: Draft, index: int) -> IntArray:
    known = known_tokens(wish)
    if not draft.lens[index]:
        return known
    return np.concatenate([known, draft.tokens[index, : draft.lens[index]]])


def stack_tables(sequences: Rows[Sequence], group: int) -> IntArray:
    """`[B, W]` block tables, padded with 0."""
    tables = [sequence.tables[group].view for sequence in sequences]
    stacked = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
    for row, table in zip(stacked, tables, strict=True):
        row[: len(table)] = table
    return stacked


def output_positions(sampling: IntArray, query_start: IntArray, num_drafts: IntArray) -> IntArray:
    """Where logits are wanted: at the last known token of a row that samples, and at its drafts."""
    sizes = num_drafts[sampling] + 1
    ends = query_start[sampling + 1]
    return np.arange(sizes.sum()) + np.repeat(ends - np.cumsum(sizes), sizes)


def scored_positions(chosen: Rows[Chosen], query_start: IntArray) -> tuple[IntArray, IntArray]:
    """Where prompt tokens are scored, and the tokens that follow there; each position once, also after preemption."""
    positions, targets = [NO_ROWS], [NO_ROWS]
    for index, wish in enumerate(chosen):
        first, end = scored_range(wish)
        if end > first:
            positions.append(np.arange(first, end) - wish.sequence.num_computed + query_start[index])
            targets.append(wish.sequence.tokens.view[first + 1 : end + 1])
    return np.concatenate(positions), np.concatenate(targets)


def scored_range(wish: Chosen) -> tuple[int, int]:
    """The row's positions, first and end, whose next prompt token is scored in this step."""
    sequence = wish.sequence
    if not sequence.is_scored:
        return 0, 0
    end = min(sequence.num_computed + wish.num_tokens, sequence.num_prompt - 1)
    return max(sequence.num_computed, sequence.num_scored), end


def pooled_ranges(chosen: Rows[Chosen], query_start: IntArray) -> IntArray:
    """`[P, 2]` the ranges of the step's tokens whose hidden states are wanted, for the rows that have one."""
    ranges = []
    for index, wish in enumerate(chosen):
        first, end = pooled_range(wish)
        if end > first:
            offset = query_start[index] - wish.sequence.num_computed
            ranges.append((first + offset, end + offset))
    return np.array(ranges, dtype=np.int64) if ranges else NO_RANGES


def pooled_range(wish: Chosen) -> tuple[int, int]:
    """The row's positions, first and end, whose hidden states go into its vector; each once, also after preemption."""
    sequence = wish.sequence
    end = sequence.num_computed + wish.num_tokens
    if sequence.pooling == "mean":
        return max(sequence.num_computed, sequence.num_pooled), end
    if sequence.pooling == "last" and wish.is_last_chunk:
        return end - 1, end
    return 0, 0
