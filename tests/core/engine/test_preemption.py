"""When KV runs out: who gives way, what it costs, and that it costs no token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from switchgear.core.engine.engine import Engine
from switchgear.core.records import IntArray, Plan, StepView
from switchgear.core.sampling_params import SamplingParams

from .build import Heard, add, drain, executor_of, step, virtual_engine
from .drafting import Drafter, drafting
from .paged import PagedBlocks, PagedKV
from .prefix import PrefixCache
from .schedulers import Continuous, policy, rows
from .virtual import tokens_alone

PARAMS = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)


def two_rows(planner: type, num_blocks: int = 6) -> tuple[Engine, Heard]:
    """Row 0 and row 1, both admitted, two blocks of four each and every block full."""
    engine = virtual_engine(PagedKV, planner, num_blocks=num_blocks, block_size=4)
    heard = Heard()
    add(engine, "old", [5] * 7, PARAMS)
    add(engine, "new", [6] * 7, PARAMS)
    step(engine, heard)
    step(engine, heard)
    return engine, heard


def with_victims(*victims: int) -> type:
    return policy(lambda view: Plan(view.rows, view.num_pending, victims=rows(*victims)))


def check(engine: Engine, heard: Heard) -> None:
    """Both end with the tokens they get alone."""
    drain(engine, heard)
    assert heard.output("old") == tokens_alone([5] * 7, PARAMS)
    assert heard.output("new") == tokens_alone([6] * 7, PARAMS)


def preemptions(heard: Heard) -> dict[str, int]:
    return {request: finals[0].num_preemptions for (request, _), finals in heard.finals.items()}


def test_the_last_admitted_gives_way() -> None:
    engine, heard = two_rows(Continuous, num_blocks=5)
    step(engine, heard)
    assert list(engine.requests.running) == [0] and list(engine.requests.waiting) == [1]
    check(engine, heard)
    assert preemptions(heard) == {"old": 0, "new": 1}


def test_the_plan_says_who_gives_way() -> None:
    engine, heard = two_rows(with_victims(0), num_blocks=5)
    step(engine, heard)
    assert list(engine.requests.running) == [1] and list(engine.requests.waiting) == [0]
    check(engine, heard)
    assert preemptions(heard)["new"] == 0


def test_victims_that_do_not_run_are_passed_over() -> None:
    engine, heard = two_rows(with_victims(77, 1), num_blocks=5)
    step(engine, heard)
    assert list(engine.requests.running) == [0]
    check(engine, heard)


def test_a_victim_that_had_its_slots_in_this_step_does_not_run() -> None:
    """Row 0 comes last in the plan, and takes back what row 1 was given in the same step."""
    backwards = policy(lambda view: Plan(view.rows[::-1], view.num_pending[::-1], victims=rows(1)))
    engine, heard = two_rows(backwards, num_blocks=5)
    step(engine, heard)
    assert executor_of(engine).last.rows.tolist() == [0]
    check(engine, heard)


def test_who_is_preempted_starts_again_at_the_head_of_the_queue() -> None:
    engine, heard = two_rows(Continuous, num_blocks=5)
    add(engine, "later", [7] * 3, PARAMS)
    step(engine, heard)
    assert list(engine.requests.waiting) == [1, 2]
    check(engine, heard)


@pytest.mark.parametrize("is_first_in_the_plan", [True, False])
def test_a_newcomer_never_takes_from_those_who_run(is_first_in_the_plan: bool) -> None:
    """Two blocks are full, the third is free: the newcomer would like it, row 0 needs it."""
    params = replace(PARAMS, max_tokens=5)
    where = -1 if is_first_in_the_plan else 1
    engine = virtual_engine(
        PagedKV, policy(lambda view: Plan(view.rows[::where], view.num_pending[::where])), num_blocks=3, block_size=4
    )
    heard = Heard()
    add(engine, "old", [5] * 7, params)
    step(engine, heard)
    step(engine, heard)
    add(engine, "new", [6] * 3, params)
    step(engine, heard)
    assert engine.driver.num_preempted == 0
    assert executor_of(engine).last.rows.tolist() == [0]
    drain(engine, heard)
    assert heard.output("old") == tokens_alone([5] * 7, params)
    assert heard.output("new") == tokens_alone([6] * 3, params)


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine, heard = two_rows(Continuous, num_blocks=5)
    add(engine, "short", [7], PARAMS)
    step(engine, heard)
    assert engine.driver.num_preempted == 1
    assert executor_of(engine).last.rows.tolist() == [0]
    check(engine, heard)


def test_rows_in_flight_are_no_victims() -> None:
    engine = virtual_engine(PagedKV, Continuous, num_blocks=4, block_size=4, max_in_flight=2, max_step_tokens=8)
    heard = Heard()
    add(engine, "old", [5] * 7, PARAMS)
    add(engine, "new", [6] * 7, PARAMS)
    for _ in range(4):
        step(engine, heard)
        in_flight = {wish.sequence.row for submitted in engine.in_flight for wish in submitted.chosen}
        assert in_flight <= set(engine.requests.running)
    check(engine, heard)


def test_a_row_whose_pool_is_pinned_gives_way_to_nobody_and_is_refused_with_the_numbers() -> None:
    engine = virtual_engine(PagedKV, num_blocks=6, block_size=4)
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, PagedBlocks)
    allocator.tables[99] = [[allocator.free[0].pop() for _ in range(5)]]  # somebody holds them and runs no row
    heard = Heard()
    add(engine, "first", [5] * 7, PARAMS)
    add(engine, "second", [6] * 2, replace(PARAMS, max_tokens=2))
    drain_without_audit(engine, heard)
    assert heard.error("first") == (
        "no KV can be had for 7 tokens although nothing else runs: the pool has 1 of 6 blocks of 4 tokens free"
    )
    assert heard.output("second") == tokens_alone([6] * 2, replace(PARAMS, max_tokens=2))


def drain_without_audit(engine: Engine, heard: Heard) -> None:
    while engine.has_work:
        heard.listen(engine.step())


def test_who_can_never_run_is_not_who_is_first_in_the_queue() -> None:
    """The policy insists on the second row, which gets no KV; the first had not been asked to run."""

    def second_only(view: StepView) -> Plan:
        wanted = view.rows == 1 if 1 in view.rows else view.rows >= 0
        return Plan(view.rows[wanted], view.num_pending[wanted])

    engine = virtual_engine(PagedKV, policy(second_only), num_blocks=6, block_size=4)
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, PagedBlocks)
    allocator.tables[99] = [[allocator.free[0].pop() for _ in range(4)]]
    heard = Heard()
    add(engine, "short", [5] * 2, replace(PARAMS, max_tokens=2))
    add(engine, "long", [6] * 12, PARAMS)
    drain_without_audit(engine, heard)
    assert "no KV can be had for 12 tokens" in heard.error("long")
    assert heard.reason("short") == "length"


@pytest.mark.parametrize("cache", [(), (PrefixCache,)])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_many_rows_in_a_tiny_pool_get_their_own_tokens(cache: tuple[type, ...], num_groups: int) -> None:
    engine = virtual_engine(
        PagedKV, *cache, Continuous, num_blocks=7, block_size=4, num_groups=num_groups, max_num_seqs=6
    )
    params = replace(PARAMS, max_tokens=14)
    prompts = {f"r{index}": [5 + index] * (3 + index) for index in range(8)}
    for request, prompt in prompts.items():
        add(engine, request, prompt, params)
    heard = drain(engine)
    assert engine.driver.num_preempted > 5
    for request, prompt in prompts.items():
        assert heard.output(request) == tokens_alone(prompt, params, num_groups=num_groups)


def test_drafts_of_a_preempted_row_are_dropped() -> None:
    def repeat(tokens: IntArray, count: int) -> list[int]:
        return [int(tokens[-1])] * count

    engine = virtual_engine(PagedKV, Continuous, drafting(repeat), num_blocks=6, block_size=4)
    heard = Heard()
    add(engine, "old", [5] * 7, PARAMS)
    add(engine, "new", [6] * 7, PARAMS)
    check(engine, heard)
    assert engine.parts.proposer is not None and isinstance(engine.parts.proposer.value, Drafter)
    assert engine.parts.proposer.value.dropped.count(1) == 1 + engine.driver.num_preempted


def test_preempting_all_costs_no_token() -> None:
    engine = virtual_engine(PagedKV, Continuous, num_blocks=12, block_size=4)
    heard = Heard()
    add(engine, "old", [5] * 7, PARAMS)
    add(engine, "new", [6] * 7, PARAMS)
    for num_steps in range(1, 5):
        for _ in range(num_steps):
            step(engine, heard)
        assert engine.preempt_all() == len(engine.requests.waiting)
        assert engine.audit() == []
        assert list(engine.requests.waiting) == sorted(engine.requests.waiting)
    check(engine, heard)


def test_a_request_that_just_fits_is_served() -> None:
    """Of 8 + 9 tokens 16 are ever in the cache: the last one is not computed."""
    engine = virtual_engine(PagedKV, num_blocks=4, block_size=4)
    add(engine, "fits", [5] * 8, replace(PARAMS, max_tokens=9))
    heard = drain(engine)
    assert heard.output("fits") == tokens_alone([5] * 8, replace(PARAMS, max_tokens=9))
    assert len(heard.output("fits")) == 9
    assert np.sum(executor_of(engine).num_step_tokens) == 16
