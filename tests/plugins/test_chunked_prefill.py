"""Chunked prefill: every step within its budget, every decode in every step. Sarathi-Serve's invariants (a) to (h)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchgear import LLM, SamplingParams
from switchgear.core.errors import ConfigError
from switchgear.core.records import Limits, Plan
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import PagedKV

from ..core.engine import virtual
from ..core.engine.build import Heard, add, executor_of
from ..core.engine.drafting import drafting
from ..core.engine.virtual import prompt_logprobs_alone, tokens_alone
from .steps import engine_of, greedy, step, steps
from .views import Row, counts, decoding, everybody, view_of


def chunked(budget: int, max_partial_prefills: int = 1) -> ChunkedPrefill:
    config = ChunkedPrefill.Config(max_num_batched_tokens=budget, max_partial_prefills=max_partial_prefills)
    return ChunkedPrefill(config)


def chunks(budget: int, max_partial_prefills: int, running: list[Row], waiting: list[Row], **limits: int) -> list[Any]:
    """(row, tokens) of all that run, in service order, under a policy that wants everybody."""
    view = view_of(running, waiting, **limits)
    return list(counts(chunked(budget, max_partial_prefills).revise(everybody(view), view)).items())


# -- the plan -------------------------------------------------------------------------------------------------------


def test_decodes_first_then_what_is_in_pieces_then_what_is_new() -> None:
    running = [Row(0, prompt=50, computed=10), decoding(1), Row(2, prompt=9, computed=4), decoding(3)]
    plan = chunks(64, 1, running, [Row(4, prompt=7), Row(5, prompt=100)])
    assert plan == [(1, 1), (3, 1), (0, 40), (2, 5), (4, 7), (5, 10)]


def test_within_a_group_the_order_of_the_policy_stands() -> None:
    view = view_of([decoding(0), decoding(1)], [Row(2, prompt=4), Row(3, prompt=4)])
    plan = Plan(view.rows[::-1], view.num_pending[::-1])
    assert list(counts(chunked(16).revise(plan, view))) == [1, 0, 3, 2]


def test_one_prompt_at_a_time_is_split() -> None:
    assert chunks(16, 1, [], [Row(0, prompt=40), Row(1, prompt=5)]) == [(0, 16)]
    assert chunks(16, 1, [], [Row(0, prompt=5), Row(1, prompt=40), Row(2, prompt=5)]) == [(0, 5), (1, 11)]
    assert chunks(16, 1, [Row(0, prompt=40, computed=20)], [Row(1, prompt=9)]) == [(0, 16)]


def test_what_decodes_leave_is_shared_evenly() -> None:
    prompts = [Row(2, prompt=40), Row(3, prompt=40), Row(4, prompt=40)]
    assert chunks(17, 2, [decoding(0)], prompts) == [(0, 1), (2, 8), (3, 8)]
    assert chunks(17, 3, [decoding(0)], prompts) == [(0, 1), (2, 6), (3, 5), (4, 5)]
    assert chunks(17, 9, [decoding(0)], prompts) == [(0, 1), (2, 6), (3, 5), (4, 5)]


def test_what_a_short_prompt_leaves_goes_to_the_others() -> None:
    assert chunks(20, 2, [], [Row(0, prompt=40), Row(1, prompt=4)]) == [(0, 16), (1, 4)]
    assert chunks(20, 2, [], [Row(0, prompt=4), Row(1, prompt=40), Row(2, prompt=40)]) == [(0, 4), (1, 8), (2, 8)]


def test_who_finds_no_slot_gets_no_share() -> None:
    running = [decoding(0), Row(1, prompt=90, computed=16)]
    assert chunks(17, 2, running, [Row(2, prompt=40)], max_num_seqs=2) == [(0, 1), (1, 16)]
    assert chunks(17, 2, running, [Row(2, prompt=40)], max_num_seqs=3) == [(0, 1), (1, 8), (2, 8)]


def test_the_smallest_budget_counts() -> None:
    # a chunk above the budget that the core keeps would run alone, and leave the decodes out
    assert chunks(512, 1, [decoding(0)], [Row(1, prompt=90)], max_step_tokens=32) == [(0, 1), (1, 31)]
    view = view_of([decoding(0)], [Row(1, prompt=90)])
    plan = chunked(512).revise(replace(everybody(view), token_budget=20), view)
    assert counts(plan) == {0: 1, 1: 19} and plan.token_budget == 20


def test_drafts_and_victims_stay_with_their_rows() -> None:
    view = view_of([Row(0, prompt=50, computed=10), decoding(1)], [])
    plan = replace(everybody(view), num_drafts=np.array([7, 3]), victims=np.array([0]))
    revised = chunked(16).revise(plan, view)
    assert dict(zip(revised.order.tolist(), revised.num_drafts.tolist(), strict=True)) == {0: 7, 1: 3}
    assert revised.victims.tolist() == [0]


def test_a_plan_of_nobody_stays_one() -> None:
    view = view_of([], [Row(0)])
    nobody = Plan(view.rows[:0], view.num_pending[:0])
    assert counts(chunked(16).revise(nobody, view)) == {}


ROWS = st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), max_size=8)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    num_decodes=st.integers(0, 6),
    partial=ROWS,
    new=st.lists(st.integers(1, 60), max_size=8),
    budget=st.integers(32, 90),
    max_partial_prefills=st.integers(1, 4),
    num_slots=st.integers(0, 8),
    seed=st.integers(0, 99),
)
def test_whatever_there_is_the_budget_is_kept_and_used(
    num_decodes: int,
    partial: list[tuple[int, float]],
    new: list[int],
    budget: int,
    max_partial_prefills: int,
    num_slots: int,
    seed: int,
) -> None:
    running = [decoding(row) for row in range(num_decodes)]
    running += [Row(100 + n, prompt + 2, int(prompt * share)) for n, (prompt, share) in enumerate(partial)]
    waiting = [Row(200 + n, prompt) for n, prompt in enumerate(new)]
    if not running + waiting:
        return
    view = view_of(running, waiting, max_num_seqs=len(running) + num_slots)
    shuffled = np.random.default_rng(seed).permutation(len(view.rows))
    plan = chunked(budget, max_partial_prefills).revise(Plan(view.rows[shuffled], view.num_pending[shuffled]), view)
    ran = counts(plan)
    pending = dict(zip(view.rows.tolist(), view.num_pending.tolist(), strict=True))
    assert sorted(plan.order.tolist()) == sorted(view.rows.tolist()), "nobody is lost"
    assert sum(ran.values()) <= budget
    assert all(ran[row] == 1 for row in range(num_decodes))
    assert [row // 100 for row in ran] == sorted(row // 100 for row in ran)
    assert all(0 < count <= pending[row] for row, count in ran.items())
    assert sum(count < pending[row] for row, count in ran.items()) <= max_partial_prefills
    admissible = [row for row in plan.order.tolist() if row >= 200][:num_slots]
    wanted = [row for row in pending if row < 200 or row in admissible]
    assert sum(ran.values()) == min(budget, sum(pending[row] for row in wanted)), "no token of the budget is idle"


# -- the engine -----------------------------------------------------------------------------------------------------


def engine_with(budget: int, *classes: type, max_partial_prefills: int = 1, **options: Any) -> Any:
    config = {"max_num_batched_tokens": budget, "max_partial_prefills": max_partial_prefills}
    return engine_of(*classes, ChunkedPrefill, plugins={"chunked_prefill": config}, **options)


@pytest.fixture
def long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual model reads 1,000 tokens."""
    monkeypatch.setattr(virtual, "MAX_MODEL_LEN", 1000)


@pytest.mark.usefixtures("long_context")
@pytest.mark.parametrize(
    ("max_partial_prefills", "first", "second", "third"),
    [
        # vLLM splits at a fixed threshold, 400/400/224 here; we share what there is among as many as may be split.
        # With two at a time the third step is the same: two decodes, and the 352 tokens that the third prompt lacks
        (2, {"a": 512, "b": 512}, {"a": 288, "b": 288, "c": 448}, {"a": 1, "b": 1, "c": 352}),
        (3, {"a": 342, "b": 341, "c": 341}, {"a": 342, "b": 341, "c": 341}, {"a": 116, "b": 118, "c": 118}),
        (1, {"a": 800, "b": 224}, {"a": 1, "b": 576, "c": 447}, {"a": 1, "b": 1, "c": 353}),
    ],
)
def test_three_long_prompts(
    max_partial_prefills: int, first: dict[str, int], second: dict[str, int], third: dict[str, int]
) -> None:
    limits = {"max_partial_prefills": max_partial_prefills, "max_step_tokens": 2048}
    engine, heard = engine_with(1024, ContinuousBatching, **limits), Heard()
    for request in ("a", "b", "c"):
        add(engine, request, [5] * 800, greedy(4))
    assert [step(engine, heard) for _ in range(3)] == [first, second, third]


def test_a_short_prompt_goes_beside_a_long_one() -> None:
    # without chunking it would wait behind the long one: nobody jumps the queue
    engine, heard = engine_with(20, ContinuousBatching, max_partial_prefills=2, max_step_tokens=40), Heard()
    add(engine, "long", [6] * 35, greedy(2))
    add(engine, "short", [7] * 3, greedy(2))
    assert step(engine, heard) == {"long": 17, "short": 3}
    assert step(engine, heard) == {"short": 1, "long": 18}


def test_a_prompt_comes_in_pieces_that_join_without_a_gap() -> None:
    engine, heard = engine_with(8, ContinuousBatching), Heard()
    add(engine, "a", [5] * 3, greedy(9))
    step(engine, heard)
    add(engine, "b", list(range(3, 30)), greedy(3))
    positions: list[int] = []
    while not heard.tokens["b", 0]:
        ran = step(engine, heard)
        batch = executor_of(engine).last
        index = list(ran).index("b")
        piece = batch.positions[batch.query_start[index] : batch.query_start[index + 1]].tolist()
        assert ran["a"] == 1 and len(piece) == ran["b"] > 0
        positions += piece
        # logits are computed for a row that samples: a decode always, a prompt with its last piece
        assert len(batch.outputs) == 1 + (len(positions) == 27)
    assert positions == list(range(27))
    steps(engine, heard)
    assert heard.output("b") == tokens_alone(range(3, 30), greedy(3))


def test_nothing_is_drafted_while_a_prompt_comes_in_pieces() -> None:
    engine, heard = engine_with(30, ContinuousBatching, drafting(lambda tokens, count: [5] * count)), Heard()
    add(engine, "a", [5] * 50, greedy(8))
    assert step(engine, heard) == {"a": 30}
    assert step(engine, heard) == {"a": 20}
    assert step(engine, heard) == {"a": 4}


def test_the_engines_own_bound_holds_too() -> None:
    engine, heard = engine_with(48, ContinuousBatching, max_step_tokens=8), Heard()
    add(engine, "a", [5] * 4, greedy(20))
    step(engine, heard)
    add(engine, "b", [6] * 30, greedy(2))
    assert [step(engine, heard) for _ in range(4)] == [{"a": 1, "b": 7}] * 4


def test_static_batches_are_chunked_as_well() -> None:
    engine, heard = engine_with(10), Heard()
    add(engine, "a", [5] * 25, greedy(3))
    add(engine, "b", [6] * 4, greedy(3))
    ran = steps(engine, heard)
    assert ran[:3] == [{"a": 10}, {"a": 10}, {"a": 5}]
    assert heard.output("a") == tokens_alone([5] * 25, greedy(3))
    assert heard.output("b") == tokens_alone([6] * 4, greedy(3))


def test_scores_of_a_prompt_in_pieces_are_those_of_the_whole() -> None:
    engine, heard = engine_with(7, ContinuousBatching), Heard()
    prompt = list(range(3, 30))
    add(engine, "a", prompt, greedy(2, prompt_logprobs=0))
    steps(engine, heard)
    assert heard.prompt_logprobs["a", 0] == pytest.approx(prompt_logprobs_alone(prompt))


def test_a_prompt_in_pieces_starts_when_there_is_kv_for_all_of_it() -> None:
    # else it would take what there is, find no more, and give it all back, again and again
    engine, heard = engine_with(8, ContinuousBatching, PagedKV, num_blocks=16), Heard()
    add(engine, "a", [5] * 30, greedy(20))
    for _ in range(4):
        step(engine, heard)
    add(engine, "b", [6] * 36, greedy(4))
    ran = steps(engine, heard)
    assert all("b" not in one for one in ran if "a" in one)
    assert heard.finals["b", 0][0].num_preemptions == 0
    assert sum(one.get("b", 0) for one in ran) == 36 + 3


# -- how long a token takes -----------------------------------------------------------------------------------------

FIXED, PER_TOKEN = 5.0, 1.0
"""Milliseconds of a step, and of each token in it."""


def largest_gap(engine: Any, arrivals: list[tuple[int, int]]) -> float:
    """Milliseconds on a virtual clock between two tokens of four requests that decode while prompts arrive."""
    heard = Heard()
    for index in range(4):
        add(engine, f"d{index}", [5] * 2, greedy(40))
    step(engine, heard)
    due = np.cumsum([after for after, _ in arrivals]).tolist()
    since_last = dict.fromkeys([f"d{index}" for index in range(4)], 0.0)
    largest = 0.0
    for now in range(36):
        for index, (_, length) in enumerate(arrivals):
            if due[index] == now:
                add(engine, f"p{index}", [6] * length, greedy(1))
        ran = step(engine, heard)
        cost = FIXED + PER_TOKEN * sum(ran.values())
        for request in since_last:
            since_last[request] += cost
            if request in ran:
                largest = max(largest, since_last[request])
                since_last[request] = 0.0
    return largest


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 60)), max_size=8),
    budget=st.integers(12, 24),
    max_partial_prefills=st.integers(1, 3),
)
def test_no_gap_between_tokens_is_longer_than_a_full_step(
    arrivals: list[tuple[int, int]], budget: int, max_partial_prefills: int
) -> None:
    engine = engine_with(budget, ContinuousBatching, max_partial_prefills=max_partial_prefills, max_num_seqs=12)
    assert largest_gap(engine, arrivals) <= FIXED + PER_TOKEN * budget


def test_without_it_a_long_prompt_is_one_long_gap() -> None:
    arrivals = [(3, 60)]
    plain = largest_gap(engine_of(ContinuousBatching, max_num_seqs=12), arrivals)
    assert plain == FIXED + PER_TOKEN * 64
    assert largest_gap(engine_with(12, ContinuousBatching, max_num_seqs=12), arrivals) == FIXED + PER_TOKEN * 12


# -- a real model ---------------------------------------------------------------------------------------------------

PROMPTS: list[str | list[int]] = [
    [5 + index % 400 for index in range(90)],
    "The switch is a small part of the machine",
    [9, 8, 7],
]


@pytest.fixture(scope="module")
def whole(tiny_model: Path) -> list[Any]:
    with LLM(str(tiny_model), dtype="float32", plugins={}) as llm:
        return llm.generate(PROMPTS, PARAMS)


PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, logprobs=0)


@pytest.mark.parametrize("policy", [{}, {"continuous_batching": {}}])
@pytest.mark.parametrize("budget", [1, 7, 16, 64, 512])
def test_the_same_tokens_whatever_the_size_of_the_pieces(
    tiny_model: Path, whole: list[Any], budget: int, policy: dict[str, Any]
) -> None:
    plugins = {**policy, "chunked_prefill": {"max_num_batched_tokens": budget}}
    with LLM(str(tiny_model), dtype="float32", plugins=plugins, max_num_seqs=min(budget, 3)) as llm:
        for mine, reference in zip(llm.generate(PROMPTS, PARAMS), whole, strict=True):
            assert mine.token_ids == reference.token_ids
            wanted = [position.chosen.logprob for position in reference.logprobs]
            assert [position.chosen.logprob for position in mine.logprobs or ()] == pytest.approx(wanted, abs=1e-4)
        assert llm.audit() == []


# -- config ---------------------------------------------------------------------------------------------------------


def test_a_budget_that_cannot_serve_every_sequence_stops_the_start() -> None:
    with pytest.raises(ConfigError) as caught:
        engine_with(7, ContinuousBatching, max_num_seqs=8)
    assert str(caught.value) == (
        "[plugins.chunked_prefill] max_num_batched_tokens = 7 cannot give each of max_num_seqs = 8 running sequences "
        "its token: raise the one or lower the other"
    )
    assert chunked(8).schedule_step(Limits(8, 64, 64))


@pytest.mark.parametrize("option", ["max_num_batched_tokens", "max_partial_prefills"])
def test_options_below_one_are_errors(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"^\[plugins.chunked_prefill\]: .*{option}"):
        engine_of(ChunkedPrefill, plugins={"chunked_prefill": {option: 0}})
