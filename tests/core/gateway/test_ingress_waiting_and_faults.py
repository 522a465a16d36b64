"""Stages that make requests wait for each other, and stages that break."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM
from switchgear.core.errors import RequestError
from switchgear.core.records import (
    Completion,
    Continue,
    IngressAnswer,
    IngressRequest,
    Outcome,
    Respond,
    Wait,
)

from .stages import GREEDY, PROMPT, Enter, journal, make, outcomes, stage


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    with make(tiny_model) as llm:
        yield llm


# -- waiting --------------------------------------------------------------------------------------------------------


class Leader:
    """The first of equal requests computes; the others wait for it, and then get its answer."""

    def __init__(self) -> None:
        self.leads: str | None = None
        self.answer: Completion | None = None
        self.num_waits = 0

    def enter(self, request: IngressRequest) -> IngressAnswer:
        if self.answer is not None:
            return Respond(self.answer)
        if self.leads is None:
            self.leads = request.id
            return Continue()
        self.num_waits += 1
        return Wait("key", 60.0)

    def leave(self, request: IngressRequest, outcome: Outcome) -> None:
        if request.id == self.leads:
            self.answer, self.leads = outcome.completion, None


def single_flight(leader: Leader) -> type:
    cls = stage("single_flight", leader.enter)

    class SingleFlight(cls):  # type: ignore[misc, valid-type]
        """Lets one of equal requests compute."""

        def leave(self, request: IngressRequest, outcome: Outcome) -> None:
            leader.leave(request, outcome)
            super().leave(request, outcome)

    return SingleFlight


def test_who_waits_enters_again_when_the_leader_is_done(tiny_model: Path, plain: LLM) -> None:
    leader = Leader()
    with make(tiny_model, single_flight(leader)) as llm:
        results = llm.generate([PROMPT] * 3, GREEDY)
        num_steps = llm._engine.num_steps
    assert {result.token_ids for result in results} == {plain.generate(PROMPT, GREEDY)[0].token_ids}
    assert num_steps == GREEDY.max_tokens and leader.num_waits == 1
    assert [what for what, _ in journal].count("leave") == 3


def test_after_a_leader_that_went_away_the_next_one_leads(tiny_model: Path, plain: LLM) -> None:
    leader = Leader()
    with make(tiny_model, single_flight(leader)) as llm:
        first = llm.stream(PROMPT, GREEDY)
        next(first)
        first.close()
        [result] = llm.generate(PROMPT, GREEDY)
    assert result.token_ids == plain.generate(PROMPT, GREEDY)[0].token_ids
    assert [outcome.kind for outcome in outcomes] == ["aborted", "finished"]


def test_a_wait_ends_with_its_timeout(tiny_model: Path) -> None:
    answers = iter([Wait("key", 0.02), Wait("key", 0.02), Continue()])
    with make(tiny_model, stage("waits", lambda request: next(answers))) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    assert result.finish_reason == "length"
    assert journal == [("enter", "waits")] * 3 + [("leave", "waits")]


# -- faults ---------------------------------------------------------------------------------------------------------


def raises(request: IngressRequest) -> IngressAnswer:
    raise OSError("no connection")


def nonsense(request: IngressRequest) -> Any:
    return "let it in"


@pytest.mark.parametrize("enter", [raises, nonsense])
def test_a_broken_guard_is_a_refusal(tiny_model: Path, enter: Enter) -> None:
    with make(tiny_model, stage("first"), stage("guard", enter)) as llm:
        with pytest.raises(RequestError, match=r"^plugin 'guard' failed in enter: raised (OSError|TypeError): "):
            llm.generate(PROMPT, GREEDY)
        assert journal == [("enter", "first"), ("enter", "guard"), ("leave", "first")]
        assert outcomes[0].kind == "rejected" and "'guard' failed" in outcomes[0].error


@pytest.mark.parametrize("enter", [raises, nonsense])
def test_a_broken_cache_is_a_miss(tiny_model: Path, plain: LLM, enter: Enter, caplog: pytest.LogCaptureFixture) -> None:
    with make(tiny_model, stage("first"), stage("cache", enter, its_on_error="pass"), stage("last")) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    assert result.token_ids == plain.generate(PROMPT, GREEDY)[0].token_ids
    assert journal == [
        ("enter", "first"),
        ("enter", "cache"),
        ("enter", "last"),
        ("leave", "last"),
        ("leave", "first"),
    ]
    assert "plugin 'cache' failed in enter" in caplog.text


def test_it_works_where_a_loop_runs_already(tiny_model: Path) -> None:
    """As in a notebook, whose cells run inside an event loop."""

    async def cell() -> str:
        with make(tiny_model, stage("a")) as llm:
            return llm.generate(PROMPT, GREEDY)[0].finish_reason

    assert asyncio.run(cell()) == "length"
