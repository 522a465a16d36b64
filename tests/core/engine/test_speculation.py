"""Drafts may save steps and never change a token: right ones, wrong ones, impossible ones, and a broken proposer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from switchgear.core.engine.engine import Engine
from switchgear.core.records import Draft, DraftView, IntArray
from switchgear.core.sampling_params import SamplingParams

from .build import Heard, add, drain, executor_of, step, virtual_engine
from .drafting import Drafter, NextTokens, drafting
from .paged import PagedKV
from .prefix import CachedBlocks, PrefixCache
from .schedulers import Continuous
from .virtual import VOCAB_SIZE, tokens_alone

PROMPTS = {"a": [5, 6, 7], "b": [9, 8, 7, 6, 5], "c": [30]}
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, seed=0, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=1.0, top_k=20, seed=7)
PENALISED = replace(SEEDED, presence_penalty=1.0, repetition_penalty=1.3, frequency_penalty=0.5, min_tokens=4)
STOPPING = replace(SEEDED, stop_token_ids=(11, 12, 13, 14, 15), ignore_eos=False)
EACH = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED, "stopping": STOPPING}


def oracle(params: SamplingParams) -> NextTokens:
    """Drafts what the row will say."""
    answers = {tuple(prompt): tokens_alone(prompt, params) for prompt in PROMPTS.values()}

    def next_tokens(tokens: IntArray, count: int) -> list[int]:
        known = tuple(tokens.tolist())
        for prompt, answer in answers.items():
            if (prompt + answer)[: len(known)] == known:
                return list(answer[len(known) - len(prompt) :][:count])
        raise AssertionError(f"no row has said {known}")

    return next_tokens


def half_right(params: SamplingParams) -> NextTokens:
    """Right in the first draft, wrong in the second."""
    right = oracle(params)
    return lambda tokens, count: [
        token if place == 0 else (token + 1) % VOCAB_SIZE for place, token in enumerate(right(tokens, count))
    ]


def noise(params: SamplingParams) -> NextTokens:
    """Any tokens, and any number of them."""
    random = np.random.default_rng(3)
    return lambda tokens, count: random.integers(0, VOCAB_SIZE, random.integers(0, count + 1)).tolist()


def beyond(params: SamplingParams) -> NextTokens:
    """Right tokens, then one that the model does not have, then more than there is room for."""
    right = oracle(params)
    return lambda tokens, count: [*right(tokens, max(1, count - 1)), VOCAB_SIZE, -7, 2**40, *range(50)]


PROPOSERS = {"oracle": oracle, "half right": half_right, "noise": noise, "beyond": beyond}
ALLOCATORS = {"contiguous": (), "paged": (PagedKV,), "prefix": (PagedKV, PrefixCache)}


def run(engine: Engine, params: SamplingParams) -> Heard:
    for request, prompt in PROMPTS.items():
        add(engine, request, prompt, params)
    return drain(engine)


def drafter_of(engine: Engine) -> Drafter:
    assert engine.parts.proposer is not None
    drafter = engine.parts.proposer.value
    assert isinstance(drafter, Drafter)
    return drafter


@pytest.mark.parametrize("params", EACH.values(), ids=EACH)
@pytest.mark.parametrize("proposer", PROPOSERS.values(), ids=PROPOSERS)
@pytest.mark.parametrize("allocator", ALLOCATORS.values(), ids=ALLOCATORS)
def test_drafts_change_no_token(
    allocator: tuple[type, ...], proposer: Callable[[SamplingParams], NextTokens], params: SamplingParams
) -> None:
    pool: dict[str, Any] = {"num_blocks": 16, "block_size": 4} if allocator else {}
    engine = virtual_engine(*allocator, Continuous, drafting(proposer(params)), **pool)
    heard = run(engine, params)
    for request, prompt in PROMPTS.items():
        assert heard.output(request) == tokens_alone(prompt, params)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_right_drafts_save_steps(params: SamplingParams) -> None:
    """One token from the prefill, then four a step: three drafts and the one that follows."""
    engine = virtual_engine(drafting(oracle(params)))
    run(engine, params)
    assert len(executor_of(engine).num_rows) == 1 + 4
    rounds = drafter_of(engine).rounds
    assert all(accepted == proposed for _, proposed, accepted in rounds)
    # of the last step nobody is told: its rows are dropped
    assert sum(accepted for _, _, accepted in rounds) == len(PROMPTS) * (3 + 3 + 3)


def test_the_proposer_is_told_how_many_drafts_stood() -> None:
    engine = virtual_engine(drafting(half_right(GREEDY)))
    run(engine, GREEDY)
    told = {(proposed, accepted) for _, proposed, accepted in drafter_of(engine).rounds}
    assert told == {(0, 0), (3, 1), (2, 1)}


def test_every_row_is_dropped_once_at_its_end() -> None:
    engine = virtual_engine(drafting(oracle(GREEDY)))
    run(engine, GREEDY)
    assert sorted(drafter_of(engine).dropped) == [0, 1, 2]


def test_rejected_drafts_are_not_cached() -> None:
    """What a second request finds are the blocks of tokens that were said, not of drafts."""
    engine = virtual_engine(PagedKV, PrefixCache, drafting(half_right(GREEDY)), num_blocks=32, block_size=4)
    run(engine, GREEDY)
    prompt = [*PROMPTS["b"], *tokens_alone(PROMPTS["b"], GREEDY)]
    add(engine, "again", prompt, replace(GREEDY, max_tokens=1))
    heard = drain(engine)
    assert heard.finals["again", 0][0].num_cached == 20 == len(prompt) - 1
    assert heard.output("again") == tokens_alone(prompt, GREEDY)[:1]


@pytest.mark.parametrize("place", range(1, 16))
def test_an_end_among_right_drafts_is_the_end(place: int) -> None:
    """The drafts after a stop token would stand too, and are neither said nor kept."""
    prompt, answer = PROMPTS["b"], tokens_alone(PROMPTS["b"], GREEDY)
    params = replace(GREEDY, stop_token_ids=(answer[place],))
    engine = virtual_engine(PagedKV, PrefixCache, drafting(oracle(GREEDY)), num_blocks=16, block_size=4)
    add(engine, "r", prompt, params)
    heard = drain(engine)
    expected = answer[: answer.index(answer[place]) + 1]
    assert (heard.output("r"), heard.reason("r")) == (expected, "stop")
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, CachedBlocks)
    assert len(allocator.cached) == (len(prompt) + len(expected) - 1) // 4


def test_several_tokens_a_step_come_with_their_scores() -> None:
    params = replace(SEEDED, logprobs=3)
    fast = run(virtual_engine(drafting(oracle(SEEDED))), params)
    slow = run(virtual_engine(), params)
    for request in PROMPTS:
        assert fast.logprobs[request, 0] == pytest.approx(slow.logprobs[request, 0])


def test_tokens_that_a_proposer_sees_are_read_only() -> None:
    seen: list[bool] = []

    def look(tokens: IntArray, count: int) -> list[int]:
        seen.append(tokens.flags.writeable)
        return []

    run(virtual_engine(drafting(look)), GREEDY)
    assert seen and not any(seen)


def test_the_view_holds_the_rows_that_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[tuple[DraftView, list[int]]] = []
    propose = Drafter.propose

    def watched(self: Drafter, view: DraftView, num_drafts: IntArray) -> Draft:
        views.append((view, num_drafts.tolist()))
        return propose(self, view, num_drafts)

    monkeypatch.setattr(Drafter, "propose", watched)
    engine = virtual_engine(Continuous, drafting(lambda tokens, count: []))
    add(engine, "long", [5, 6, 7], GREEDY)
    heard = Heard()
    step(engine, heard)
    assert not views, "nobody drafts in prefill"
    add(engine, "late", [9], GREEDY)
    step(engine, heard)
    [(view, wanted)] = views
    assert view.rows.tolist() == [0, 1] and wanted == [3, 0]
    assert view.tokens[0].tolist() == [5, 6, 7, *heard.output("long")[:1]]


@pytest.fixture
def broken() -> Iterator[type]:
    def raise_at_last(tokens: IntArray, count: int) -> list[int]:
        if len(tokens) > 8:
            raise RuntimeError("lost the thread")
        return [int(tokens[-1])] * count

    yield drafting(raise_at_last)


def test_a_proposer_that_raises_fails_its_rows_with_its_name(broken: type) -> None:
    engine = virtual_engine(broken)
    heard = run(engine, GREEDY)
    for request in PROMPTS:
        assert heard.error(request) == "plugin 'drafting' failed in propose: raised RuntimeError: lost the thread"
    short = replace(GREEDY, max_tokens=2)
    add(engine, "d", [5, 6], short)
    assert drain(engine, heard).output("d") == tokens_alone([5, 6], short)
