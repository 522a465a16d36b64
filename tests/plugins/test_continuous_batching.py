"""Continuous batching: who is admitted and when, alone and through an engine. Orca's invariants (a) to (f)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchgear import LLM, SamplingParams
from switchgear.core.errors import PluginError
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import PagedKV

from ..core.engine.build import Heard, add
from ..core.engine.schedulers import Continuous
from ..core.engine.virtual import tokens_alone
from .steps import engine_of, greedy, step, steps
from .views import Row, counts, decoding, view_of

BY_PRIORITY = {"policy": "priority"}


def policy(name: str = "fcfs") -> ContinuousBatching:
    return ContinuousBatching(ContinuousBatching.Config(policy=name))  # type: ignore[arg-type]


# -- the plan -------------------------------------------------------------------------------------------------------


def test_everybody_is_offered_with_all_that_is_pending() -> None:
    view = view_of([decoding(4), Row(2, prompt=9, computed=3)], [Row(5, prompt=7), Row(6, prompt=11)])
    plan = policy().plan(view)
    assert list(counts(plan).items()) == [(4, 1), (2, 6), (5, 7), (6, 11)]
    assert plan.token_budget is None and not len(plan.num_drafts) and not len(plan.victims)


def test_first_come_is_by_arrival_and_not_by_the_queue() -> None:
    # who was held joins the queue's end, and a preempted row its front: neither moves in time
    queue = [Row(7, arrival=3.0), Row(8, arrival=4.0), Row(1, arrival=1.0), Row(9, arrival=4.0)]
    plan = policy().plan(view_of([decoding(0, arrival=2.0)], queue))
    assert plan.order.tolist() == [0, 1, 7, 8, 9]


def test_first_come_ignores_priority() -> None:
    queue = [Row(1, arrival=1.0, priority=9), Row(2, arrival=2.0, priority=-9)]
    plan = policy().plan(view_of([decoding(3, priority=5), decoding(0)], queue))
    assert plan.order.tolist() == [3, 0, 1, 2]
    assert not len(plan.victims)


def test_priority_admits_the_lower_number_first_and_then_the_first_to_come() -> None:
    queue = [
        Row(1, arrival=1.0, priority=2),
        Row(2, arrival=4.0, priority=-1),
        Row(3, arrival=3.0, priority=0),
        Row(4, arrival=2.0, priority=0),
    ]
    plan = policy("priority").plan(view_of([decoding(9, priority=7)], queue))
    assert plan.order.tolist() == [9, 2, 4, 3, 1]


def test_priority_takes_from_the_least_important_and_of_equals_from_the_last_admitted() -> None:
    running = [decoding(5, priority=1), decoding(6, priority=3), decoding(7, priority=0), decoding(8, priority=3)]
    plan = policy("priority").plan(view_of(running, [Row(9, priority=100)]))
    assert plan.victims.tolist() == [8, 6, 5, 7]
    assert plan.order.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_a_plan_of_nobody_and_of_one(name: str) -> None:
    assert counts(policy(name).plan(view_of([], [Row(0, prompt=3)]))) == {0: 3}
    assert counts(policy(name).plan(view_of([decoding(0)], []))) == {0: 1}


# -- the engine -----------------------------------------------------------------------------------------------------


def test_whoever_arrives_during_a_step_is_in_the_next() -> None:
    engine, heard = engine_of(ContinuousBatching), Heard()
    add(engine, "a", [5] * 6, greedy(5))
    assert step(engine, heard) == {"a": 6}
    add(engine, "b", [6] * 3, greedy(2))
    assert step(engine, heard) == {"a": 1, "b": 3}
    add(engine, "c", [7] * 4, greedy(2))
    assert step(engine, heard) == {"a": 1, "b": 1, "c": 4}


def test_whoever_is_done_leaves_at_once_and_its_slot_is_taken_in_the_next_step() -> None:
    engine, heard = engine_of(ContinuousBatching, max_num_seqs=2), Heard()
    add(engine, "short", [5] * 4, greedy(2))
    add(engine, "long", [6] * 4, greedy(4))
    add(engine, "next", [7] * 4, greedy(2))
    assert step(engine, heard) == {"short": 4, "long": 4}
    assert step(engine, heard) == {"short": 1, "long": 1}
    assert heard.reason("short") == "length"
    assert step(engine, heard) == {"long": 1, "next": 4}


def test_all_who_fit_are_admitted_in_one_step_in_the_order_of_arrival() -> None:
    engine, heard = engine_of(ContinuousBatching, max_num_seqs=8), Heard()
    lengths = {"a": 9, "b": 2, "c": 20, "d": 1, "e": 7}
    for request, length in lengths.items():
        add(engine, request, [5] * length, greedy(1))
    assert list(step(engine, heard).items()) == list(lengths.items())
    assert all(heard.finals[request, 0][0].num_cached == 0 for request in lengths)


def test_a_long_request_blocks_the_short_ones_behind_it() -> None:
    engine, heard = engine_of(ContinuousBatching, max_step_tokens=20), Heard()
    add(engine, "first", [5] * 12, greedy(2))
    add(engine, "long", [6] * 15, greedy(2))
    add(engine, "short", [7] * 3, greedy(2))
    assert step(engine, heard) == {"first": 12}
    assert step(engine, heard) == {"first": 1, "long": 15, "short": 3}


def test_a_request_leaves_every_queue_when_it_is_aborted() -> None:
    engine, heard = engine_of(ContinuousBatching, max_num_seqs=1), Heard()
    for number, request in enumerate(("running", "waiting", "held"), start=1):
        add(engine, request, [5] * 4, greedy(9), hold="ticket" if request == "held" else None)
        assert len(engine.requests) == number
    step(engine, heard)
    for number, request in enumerate(("waiting", "held", "running"), start=1):
        engine.abort(request)
        assert len(engine.requests) == 3 - number
        assert engine.audit() == []
    steps(engine, heard)
    assert {heard.reason(request) for request in ("running", "waiting", "held")} == {"abort"}


def test_a_row_in_flight_is_not_run_twice_and_others_are() -> None:
    engine, heard = engine_of(ContinuousBatching, max_in_flight=2, max_step_tokens=6), Heard()
    for request in ("a", "b"):
        add(engine, request, [5] * 6, greedy(3))
    # each call submits until two steps are in flight, and collects the older one
    assert step(engine, heard) == {"b": 6}
    assert {sequence.request: sequence.num_in_flight for sequence in engine.requests} == {"a": 0, "b": 6}
    assert [step(engine, heard) for _ in range(4)] == [{"a": 1}, {"b": 1}, {"a": 1}, {"b": 1}]
    steps(engine, heard)
    assert heard.output("a") == heard.output("b") == tokens_alone([5] * 6, greedy(3))


def test_who_was_held_is_served_by_when_it_came() -> None:
    engine, heard = engine_of(ContinuousBatching, max_num_seqs=1), Heard()
    add(engine, "running", [5] * 4, greedy(3))
    step(engine, heard)
    add(engine, "held", [6] * 4, greedy(1), hold="ticket")
    add(engine, "later", [7] * 4, greedy(1))
    engine.complete("ticket")
    order = [request for one in steps(engine, heard) for request in one]
    assert order.index("held") < order.index("later")


def test_lower_priority_numbers_run_first() -> None:
    engine, heard = engine_of(ContinuousBatching, max_num_seqs=1, plugins={"continuous_batching": BY_PRIORITY}), Heard()
    for request, priority in (("d", 5), ("a", -1), ("c", 5), ("b", 0)):
        add(engine, request, [5] * 4, greedy(1), priority=priority)
    assert [*(request for one in steps(engine, heard) for request in one)] == ["a", "b", "d", "c"]


def test_nobody_waits_for_ever_behind_the_more_important() -> None:
    options: dict[str, Any] = {"max_num_seqs": 1, "max_overtaken": 3, "plugins": {"continuous_batching": BY_PRIORITY}}
    engine, heard = engine_of(ContinuousBatching, **options), Heard()
    add(engine, "patient", [5] * 4, greedy(1), priority=9)
    served: list[str] = []
    for number in range(8):
        add(engine, f"urgent {number}", [6] * 4, greedy(1), priority=0)
        served += step(engine, heard)
    assert served.index("patient") == 3


@pytest.mark.parametrize(
    ("name", "first", "last", "victim"),
    [
        ("fcfs", 9, 0, "last"),
        ("priority", 0, 9, "last"),
        ("priority", 9, 0, "first"),
        ("priority", 5, 5, "last"),
    ],
)
def test_who_gives_way_when_kv_runs_out(name: str, first: int, last: int, victim: str) -> None:
    assert preempted(name, {"first": first, "last": last}) == [victim]


def preempted(name: str, priorities: dict[str, int]) -> list[str]:
    """Who was preempted at least once, when two requests want more KV than there is; none loses a token by it."""
    options: dict[str, Any] = {"plugins": {"continuous_batching": {"policy": name}}, "num_blocks": 6, "block_size": 4}
    engine, heard = engine_of(ContinuousBatching, PagedKV, **options), Heard()
    for request, priority in priorities.items():
        add(engine, request, [5] * 8, greedy(12), priority=priority)
    steps(engine, heard)
    for request in priorities:
        assert heard.output(request) == tokens_alone([5] * 8, greedy(12))
    return [request for request in priorities if heard.finals[request, 0][0].num_preemptions]


# -- any history ----------------------------------------------------------------------------------------------------

ARRIVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 16), st.integers(1, 10)), min_size=2, max_size=12)
"""(steps since the one before, prompt tokens, output tokens)"""


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    arrivals=ARRIVALS,
    num_blocks=st.integers(7, 14),
    max_num_seqs=st.integers(1, 4),
    max_step_tokens=st.integers(4, 24),
)
def test_first_come_first_served_whatever_comes(
    arrivals: list[tuple[int, int, int]], num_blocks: int, max_num_seqs: int, max_step_tokens: int
) -> None:
    """No idle step while somebody could run, no deadlock, and nobody gets ahead of who came before."""
    limits = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "max_step_tokens": max_step_tokens}
    engine, heard = engine_of(ContinuousBatching, PagedKV, **limits), Heard()
    num_iterations: Counter[str] = Counter()
    due = np.cumsum([gap for gap, _, _ in arrivals])
    names = [f"r{index}" for index in range(len(arrivals))]
    pending = list(zip(due.tolist(), names, arrivals, strict=True))
    for now in range(1000):
        while pending and pending[0][0] <= now:
            _, name, (_, prompt, output) = pending.pop(0)
            add(engine, name, [5] * prompt, greedy(output))
        if not pending and not engine.has_work:
            break
        could_run = bool(len(engine.requests))
        ran = step(engine, heard)
        assert ran or not could_run
        num_iterations.update(dict.fromkeys(ran, 1))
        alive = [name for name in names if not heard.finals[name, 0]]
        for name in alive:
            earlier = [other for other in alive if names.index(other) < names.index(name)]
            assert all(num_iterations[other] >= num_iterations[name] for other in earlier)
    for name, (_, prompt, output) in zip(names, arrivals, strict=True):
        assert heard.output(name) == tokens_alone([5] * prompt, greedy(output))


# -- what it buys ---------------------------------------------------------------------------------------------------


def num_steps(lengths: list[int], *classes: type) -> int:
    engine = engine_of(*classes, max_num_seqs=8)
    for index, length in enumerate(lengths):
        add(engine, f"r{index}", [5] * 4, greedy(length))
    return len(steps(engine, Heard()))


def test_fewer_steps_where_outputs_differ_in_length_and_as_many_where_they_are_equal() -> None:
    uneven = np.random.default_rng(0).integers(1, 33, 64).tolist()
    assert num_steps(uneven) / num_steps(uneven, ContinuousBatching) > 1.5
    assert num_steps([16] * 64) == num_steps([16] * 64, ContinuousBatching)


# -- a real model ---------------------------------------------------------------------------------------------------

PROMPTS: list[str | list[int]] = [
    "The switch",
    "a",
    "Queues, blocks, drafts and kernels",
    [7] * 40,
    "every one of those words",
    [9, 8, 7],
]


def test_a_request_cannot_tell_who_else_is_in_the_batch(tiny_model: Path) -> None:
    params = [
        SamplingParams(max_tokens=4 + 5 * index, temperature=0, ignore_eos=True, logprobs=0)
        for index in range(len(PROMPTS))
    ]
    with LLM(str(tiny_model), dtype="float32", plugins={"continuous_batching": {}}, max_num_seqs=3) as llm:
        together = llm.generate(PROMPTS, params)
        alone = [llm.generate([prompt], one)[0] for prompt, one in zip(PROMPTS, params, strict=True)]
        assert llm.audit() == []
    for mine, reference in zip(together, alone, strict=True):
        assert mine.token_ids == reference.token_ids
        assert logprobs(mine.logprobs) == pytest.approx(logprobs(reference.logprobs), abs=1e-5)


def logprobs(positions: object) -> list[float]:
    assert isinstance(positions, tuple)
    return [position.chosen.logprob for position in positions]


# -- config ---------------------------------------------------------------------------------------------------------


def test_two_policies_are_an_error_that_names_both() -> None:
    text = "plugins 'continuous_batching' and 'continuous' both provide 'schedule_step', which has one owner"
    with pytest.raises(PluginError, match=re.escape(text)):
        engine_of(ContinuousBatching, Continuous)


def test_an_unknown_policy_is_an_error_that_names_the_option() -> None:
    with pytest.raises(Exception, match=r"^\[plugins.continuous_batching\]: .*policy"):
        engine_of(ContinuousBatching, plugins={"continuous_batching": {"policy": "shortest"}})
