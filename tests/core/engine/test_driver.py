"""What a step takes of a plan: whole prompts while they fit, nobody past a blocked row, never more than the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from switchgear.core.engine.engine import Engine
from switchgear.core.records import NO_ROWS, Batch, Plan, StepView
from switchgear.core.sampling_params import SamplingParams

from .build import Heard, add, drain, executor_of, step, virtual_engine
from .drafting import drafting
from .paged import PagedKV
from .schedulers import Continuous, modifier, policy, rows
from .virtual import tokens_alone

PARAMS = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)


def queue(engine: Engine, *lengths: int, params: SamplingParams = PARAMS) -> None:
    """One request for each prompt length; the row numbers count from 0."""
    for length in lengths:
        add(engine, f"r{len(engine.requests)}", [5 + length] * length, params)


def next_batch(engine: Engine) -> Batch:
    step(engine, Heard())
    return executor_of(engine).last


def sizes(batch: Batch) -> dict[int, int]:
    """Tokens in the step, by row."""
    return dict(zip(batch.rows.tolist(), batch.query_lens.tolist(), strict=True))


# -- fit ------------------------------------------------------------------------------------------------------------


def test_whole_prompts_are_admitted_while_they_fit() -> None:
    engine = virtual_engine(Continuous, max_step_tokens=16)
    queue(engine, 6, 10, 1)
    assert sizes(next_batch(engine)) == {0: 6, 1: 10}
    assert sizes(next_batch(engine)) == {0: 1, 1: 1, 2: 1}


def test_no_more_rows_run_than_may() -> None:
    engine = virtual_engine(Continuous, max_num_seqs=2)
    queue(engine, 3, 3, 3)
    assert sizes(next_batch(engine)) == {0: 3, 1: 3}
    assert sizes(next_batch(engine)) == {0: 1, 1: 1}


def test_static_batching_admits_when_nothing_runs() -> None:
    engine = virtual_engine(max_num_seqs=2)
    queue(engine, 3, 3, 3)
    batches = [sizes(next_batch(engine)) for _ in range(5)]
    assert batches == [{0: 3, 1: 3}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 3}]


def test_a_prompt_over_the_budget_runs_alone() -> None:
    engine = virtual_engine(Continuous, max_step_tokens=16)
    queue(engine, 6, 20, 2)
    assert [sizes(next_batch(engine)) for _ in range(3)] == [{0: 6}, {1: 20}, {0: 1, 1: 1, 2: 2}]


def test_a_prompt_over_the_budget_waits_for_its_turn() -> None:
    """Behind a row that is blocked, or that is admitted in the same step, it is no exception."""
    engine = virtual_engine(Continuous, max_step_tokens=16)
    queue(engine, 10, 8, 20)
    assert [sizes(next_batch(engine)) for _ in range(3)] == [{0: 10}, {0: 1, 1: 8}, {2: 20}]


def test_nobody_passes_a_row_that_does_not_fit() -> None:
    engine = virtual_engine(Continuous, max_step_tokens=16)
    queue(engine, 6, 14, 2)
    assert sizes(next_batch(engine)) == {0: 6}
    assert sizes(next_batch(engine)) == {0: 1, 1: 14}


def test_nobody_passes_a_row_that_gets_no_kv() -> None:
    engine = virtual_engine(PagedKV, Continuous, num_blocks=6, block_size=4)
    queue(engine, 14, 12, 2)
    assert sizes(next_batch(engine)) == {0: 14}


def test_a_long_prompt_without_kv_does_not_stop_those_who_run() -> None:
    engine = virtual_engine(PagedKV, Continuous, max_step_tokens=16, num_blocks=8, block_size=4)
    heard = Heard()
    queue(engine, 14, params=replace(PARAMS, max_tokens=12))
    step(engine, heard)
    add(engine, "long", [7] * 20, PARAMS)
    drain(engine, heard)
    assert heard.reason("r0") == heard.reason("long") == "length"
    assert heard.output("long") == tokens_alone([7] * 20, PARAMS)


@pytest.mark.parametrize("budgets", [(10, 6, 8), (6, 10, 8), (10, 8, 6), (None, 6, None), (6, None, None)])
def test_the_smallest_budget_wins(budgets: tuple[int | None, int | None, int | None]) -> None:
    def named(budget: int | None) -> type:
        return modifier(lambda plan, view: replace(plan, token_budget=budget), f"budget_{budget}")

    first = policy(lambda view: Plan(view.rows, view.num_pending, token_budget=budgets[0]))
    others = {cls.name: cls for cls in map(named, budgets[1:])}  # type: ignore[attr-defined]
    engine = virtual_engine(first, *others.values(), max_step_tokens=16)
    queue(engine, 3, 3, 3, 3)
    assert sizes(next_batch(engine)) == {0: 3, 1: 3}


def test_a_budget_of_nothing_still_lets_one_token_through() -> None:
    engine = virtual_engine(policy(lambda view: Plan(view.rows, view.num_pending, token_budget=-5)))
    queue(engine, 3, 3)
    assert sizes(next_batch(engine)) == {0: 3}
    assert sizes(next_batch(engine)) in ({0: 1}, {1: 3})
    assert drain(engine).reason("r1") == "length"


def test_a_policy_that_plans_nothing_makes_progress() -> None:
    engine = virtual_engine(policy(lambda view: Plan(NO_ROWS, NO_ROWS)))
    queue(engine, 3, 4)
    heard = drain(engine)
    for request, length in (("r0", 3), ("r1", 4)):
        assert heard.output(request) == tokens_alone([5 + length] * length, PARAMS)


def test_a_policy_that_only_wants_what_cannot_run_makes_progress() -> None:
    """It asks for the newcomer alone, for whom there is no KV while the other one runs."""

    def plan(view: StepView) -> Plan:
        newcomers = view.rows[view.num_running :]
        return Plan(newcomers, view.num_pending[view.num_running :])

    engine = virtual_engine(PagedKV, policy(plan), num_blocks=5, block_size=4)
    queue(engine, 12, 12)
    heard = drain(engine)
    assert heard.reason("r0") == heard.reason("r1") == "length"


def test_counts_beyond_what_is_pending_are_cut() -> None:
    engine = virtual_engine(policy(lambda view: Plan(view.rows, view.num_pending + 7)))
    queue(engine, 3)
    assert [sizes(next_batch(engine)) for _ in range(2)] == [{0: 3}, {0: 1}]


# -- modifiers ------------------------------------------------------------------------------------------------------


def test_a_modifier_splits_a_prompt() -> None:
    halves = modifier(lambda plan, view: replace(plan, num_tokens=np.minimum(plan.num_tokens, 2)))
    engine = virtual_engine(Continuous, halves)
    queue(engine, 5)
    assert [sizes(next_batch(engine)) for _ in range(4)] == [{0: 2}, {0: 2}, {0: 1}, {0: 1}]
    assert drain(engine).reason("r0") == "length"


def test_what_a_modifier_raises_or_adds_is_clamped_away() -> None:
    splits = policy(lambda view: Plan(view.rows[:1], np.minimum(view.num_pending[:1], 2)))
    greedy = modifier(lambda plan, view: Plan(view.rows, view.num_pending, token_budget=1000))
    engine = virtual_engine(splits, greedy)
    queue(engine, 5, 5)
    assert sizes(next_batch(engine)) == {0: 2}


def test_a_modifier_reorders() -> None:
    backwards = modifier(lambda plan, view: replace(plan, order=plan.order[::-1], num_tokens=plan.num_tokens[::-1]))
    engine = virtual_engine(Continuous, backwards, max_num_seqs=1)
    queue(engine, 3, 4)
    assert sizes(next_batch(engine)) == {1: 4}


# -- drafts ---------------------------------------------------------------------------------------------------------

Repeating = drafting(lambda tokens, count: [int(tokens[-1])] * count)


def with_drafts(plan: Plan) -> Plan:
    return replace(plan, num_drafts=np.full(len(plan.order), 2))


def test_the_plugin_that_drafts_may_ask_for_drafts() -> None:
    engine = virtual_engine(Continuous, Repeating)
    queue(engine, 5, params=replace(PARAMS, max_tokens=12))
    assert next_batch(engine).num_drafts.tolist() == [0]
    assert next_batch(engine).num_drafts.tolist() == [3]


@pytest.mark.parametrize("place", ["policy", "before", "after"])
def test_nobody_else_may_ask_for_drafts(place: str) -> None:
    asks = place == "policy"
    planner = policy(lambda view: with_drafts(Plan(view.rows, view.num_pending)) if asks else plain(view))
    other = modifier((lambda plan, view: plan) if asks else (lambda plan, view: with_drafts(plan)))
    silent = drafting(lambda tokens, count: [int(tokens[-1])] * count, num_drafts=None)
    engine = virtual_engine(planner, *((other, silent) if place == "before" else (silent, other)))
    queue(engine, 5, params=replace(PARAMS, max_tokens=12))
    assert [next_batch(engine).num_drafts.tolist() for _ in range(3)] == [[0]] * 3


def plain(view: StepView) -> Plan:
    return Plan(view.rows, view.num_pending)


def test_without_a_proposer_drafts_take_no_room() -> None:
    asks = policy(lambda view: with_drafts(plain(view)))
    engine = virtual_engine(asks, modifier(lambda plan, view: with_drafts(plan)), max_step_tokens=4)
    queue(engine, 1, 1, 1, 1)
    assert sizes(next_batch(engine)) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_drafts_never_cost_a_row_its_turn() -> None:
    engine = virtual_engine(Continuous, Repeating, max_step_tokens=6, max_num_seqs=2)
    queue(engine, 3, 3, params=replace(PARAMS, max_tokens=12))
    next_batch(engine)
    batch = next_batch(engine)
    assert sizes(batch) == {0: 4, 1: 2}
    assert batch.num_drafts.tolist() == [3, 1]


def test_drafts_end_before_the_last_token() -> None:
    engine = virtual_engine(Continuous, drafting(lambda tokens, count: [0] * count, num_drafts=50))
    queue(engine, 5, params=replace(PARAMS, max_tokens=4))
    next_batch(engine)
    assert next_batch(engine).num_drafts.tolist() == [2]


def test_a_row_that_is_computed_again_in_pieces_drafts_with_the_last_one() -> None:
    """Preempted after its prompt: before all it said is computed again, drafts would stand in the wrong place."""
    in_twos = modifier(lambda plan, view: replace(plan, num_tokens=np.minimum(plan.num_tokens, 2)))
    engine = virtual_engine(Continuous, in_twos, Repeating)
    queue(engine, 4, params=replace(PARAMS, max_tokens=20))
    for _ in range(6):
        next_batch(engine)
    engine.preempt_all()
    num_drafts = []
    for _ in range(6):
        num_known = engine.requests.by_row[0].num_tokens
        batch = next_batch(engine)
        num_drafts.append(int(batch.num_drafts[0]))
        assert not num_drafts[-1] or batch.context_lens[0] == num_known + num_drafts[-1]
    assert num_drafts[:3] == [0, 0, 0] and num_drafts[-1] == 3


# -- nobody waits for ever ------------------------------------------------------------------------------------------


def test_who_was_overtaken_too_often_is_the_only_one_offered() -> None:
    offers: list[list[int]] = []

    def shortest_first(view: StepView) -> Plan:
        offers.append(view.rows.tolist())
        order = np.argsort(view.num_pending, kind="stable")
        return Plan(view.rows[order], view.num_pending[order])

    engine = virtual_engine(policy(shortest_first), max_num_seqs=1, max_overtaken=2)
    one_token = replace(PARAMS, max_tokens=1)
    heard = Heard()
    add(engine, "long", [5] * 9, one_token)
    for index in range(5):
        add(engine, f"short{index}", [6] * 2, one_token)
    for _ in range(6):
        step(engine, heard)
    assert list(heard.finals) == [(name, 0) for name in ("short0", "short1", "long", "short2", "short3", "short4")]
    assert offers[2] == [0]


def test_who_runs_goes_on_while_the_overtaken_row_waits() -> None:
    def never_the_first(view: StepView) -> Plan:
        wanted = view.rows != 0
        return Plan(view.rows[wanted], view.num_pending[wanted])

    engine = virtual_engine(policy(never_the_first), max_overtaken=1)
    heard = Heard()
    queue(engine, 3, 3, 3, 3)
    step(engine, heard)
    add(engine, "late", [9] * 3, PARAMS)
    for _ in range(3):
        step(engine, heard)
    assert set(heard.finals) >= {("r1", 0), ("r2", 0), ("r3", 0)}
    assert not heard.tokens["late", 0]
    drain(engine, heard)
    assert list(heard.finals)[-2:] == [("r0", 0), ("late", 0)]


def test_rows_and_views_are_read_only() -> None:
    def scribble(view: StepView) -> Plan:
        for array in (view.rows, view.arrival, view.priority, view.num_tokens, view.num_computed):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        return Plan(rows(0), rows(3))

    engine = virtual_engine(policy(scribble))
    queue(engine, 3)
    next_batch(engine)
