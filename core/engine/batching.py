"""From chosen sequences to the flat arrays that a worker runs."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from ..records import NO_RANGES, NO_ROWS, Batch, BlockCopy, Draft, IntArray
from .driver import Chosen
from .sequence import Sequence


def make_batch(
    step: int, chosen: Rows[Chosen], copies: Rows[BlockCopy], draft: Draft | None, block_size: int, num_groups: int
) -> Batch:
    """Flatten the step. A row's drafts follow its known tokens; `draft` has one entry for each chosen row."""
    num_drafts = draft.lens if draft is not None else np.zeros(len(chosen), dtype=np.int64)
    num_known = np.array([wish.num_tokens for wish in chosen], dtype=np.int64)
    starts = np.array([wish.sequence.num_computed for wish in chosen], dtype=np.int64)
    query_lens = num_known + num_drafts
    query_start = np.concatenate([[0], np.cumsum(query_lens)])
    row_of = np.repeat(np.arange(len(chosen)), query_lens)
    positions = np.arange(query_start[-1]) - query_start[row_of] + starts[row_of]
    tables = tuple(stack_tables([wish.sequence for wish in chosen], group) for group in range(num_groups))
    slots = tuple(table[row_of, positions // block_size] * block_size + positions % block_size for table in tables)
    scored, targets = scored_positions(chosen, query_start)
    return Batch(
        step=step,
        rows=np.array([wish.sequence.row for wish in chosen], dtype=np.int64),
        token_ids=np.concatenate([tokens_of(wish, draft, index) for index, wish in enumerate(chosen)]),
        positions=positions,
        query_start=query_start,
        context_lens=starts + query_lens,
        num_drafts=num_drafts,
        block_tables=tables,
        slots=slots,
        block_size=block_size,
        copies=tuple(copies),
        outputs=output_positions(chosen, query_start, num_known),
        scored=scored,
        targets=targets,
        num_top=max((wish.sequence.params.prompt_logprobs or 0 for wish in chosen), default=0),
        pooled=pooled_ranges(chosen, query_start),
    )


def tokens_of(wish: Chosen, draft: Draft | None, index: int) -> IntArray:
    start = wish.sequence.num_computed
    known = wish.sequence.tokens.view[start : start + wish.num_tokens]
    if draft is None or not draft.lens[index]:
        return known
    return np.concatenate([known, draft.tokens[index, : draft.lens[index]]])


def stack_tables(sequences: Rows[Sequence], group: int) -> IntArray:
    """`[B, W]` block tables, padded with 0."""
    tables = [sequence.tables[group].view for sequence in sequences]
    stacked = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
    for row, table in zip(stacked, tables, strict=True):
        row[: len(table)] = table
    return stacked


def output_positions(chosen: Rows[Chosen], query_start: IntArray, num_known: IntArray) -> IntArray:
    """Where logits are wanted: at the last known token of a row that samples, and at its drafts."""
    ranges = [
        np.arange(query_start[index] + num_known[index] - 1, query_start[index + 1])
        for index, wish in enumerate(chosen)
        if wish.samples
    ]
    return np.concatenate(ranges) if ranges else NO_ROWS


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
