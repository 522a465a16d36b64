"""The executor counts a step as the cost model does, whatever is in it."""

from __future__ import annotations

import numpy as np
import pytest
from switchgear.core.lab.cost_model import StepCounts
from switchgear.core.lab.costed_executor import CostedExecutor, counts_of
from switchgear.core.lab.virtual_clock import VirtualClock
from switchgear.core.records import NO_ROWS, Batch

from tests.core.lab.simulations import TOKENS


def batch_of(query_lens: list[int], context_lens: list[int], num_outputs: int) -> Batch:
    num_tokens = sum(query_lens)
    return Batch(
        step=7,
        rows=np.arange(len(query_lens)),
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=np.zeros(num_tokens, dtype=np.int64),
        query_start=np.cumsum([0, *query_lens]),
        context_lens=np.array(context_lens),
        num_drafts=np.zeros(len(query_lens), dtype=np.int64),
        block_tables=(),
        slots=(),
        block_size=16,
        copies=(),
        outputs=np.arange(num_outputs),
        scored=NO_ROWS,
        targets=NO_ROWS,
    )


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "num_outputs"),
    [([1, 1, 1], [5, 900, 17], 3), ([1, 64, 3], [5, 64, 90], 2), ([128], [400], 0)],
)
def test_a_step_is_counted_as_the_cost_model_counts_it(
    query_lens: list[int], context_lens: list[int], num_outputs: int
) -> None:
    expected = StepCounts.of_rows(query_lens, context_lens, num_outputs)
    assert counts_of(batch_of(query_lens, context_lens, num_outputs)) == expected


def test_the_time_has_passed_when_the_step_is_collected() -> None:
    clock = VirtualClock()
    executor = CostedExecutor((), TOKENS, clock)
    ticket = executor.submit(batch_of([1, 4], [8, 4], 2))
    assert (ticket, clock()) == (7, 0.0)
    logits = executor.collect(ticket).logits
    assert clock() == 5.0 and logits.shape[0] == 2 and not logits.any()
