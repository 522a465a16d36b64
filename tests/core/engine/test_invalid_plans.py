"""A plan that cannot be used fails the rows of its step, in the name of whoever made it; the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from switchgear.core.records import NO_ROWS, Plan, StepView
from switchgear.core.sampling_params import SamplingParams

from .build import Heard, add, drain, step, virtual_engine
from .schedulers import Continuous, modifier, policy, rows
from .virtual import tokens_alone

PARAMS = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)


def changed(plan: Plan, **fields: Any) -> Any:
    return replace(plan, **fields)


INVALID: dict[str, tuple[Callable[[Plan], Any], str]] = {
    "nothing": (lambda plan: None, "returned NoneType, a Plan is needed"),
    "a dict": (lambda plan: {"order": plan.order}, "returned dict, a Plan is needed"),
    "a list": (lambda plan: changed(plan, order=plan.order.tolist()), "Plan.order must be a one-dimensional integer"),
    "floats": (lambda plan: changed(plan, num_tokens=plan.num_tokens * 0.5), "Plan.num_tokens must be a one-dim"),
    "flags": (lambda plan: changed(plan, num_tokens=plan.num_tokens > 0), "Plan.num_tokens must be a one-dim"),
    "a matrix": (lambda plan: changed(plan, order=plan.order[None]), "Plan.order must be a one-dimensional"),
    "no victims": (lambda plan: changed(plan, victims=None), "Plan.victims must be a one-dimensional"),
    "a short count": (lambda plan: changed(plan, num_tokens=plan.num_tokens[1:]), "one entry for each row"),
    "a short draft": (lambda plan: changed(plan, num_drafts=rows(1)), "one entry for each row"),
    "a row twice": (lambda plan: Plan(rows(0, 1, 0), rows(1, 1, 1)), "Plan.order names a row twice"),
    "an unknown row": (lambda plan: Plan(rows(0, 77), rows(1, 1)), "names row 77, which was not offered"),
    "a negative row": (lambda plan: Plan(rows(-1), rows(1)), "names row -1, which was not offered"),
    "a negative count": (lambda plan: changed(plan, num_tokens=-plan.num_tokens), "a negative number of tokens"),
    "a negative draft": (lambda plan: changed(plan, num_drafts=rows(-1, 0)), "a negative number of tokens"),
    "half a token": (lambda plan: changed(plan, token_budget=1.5), "must be an integer or None, not 1.5"),
    "a named budget": (lambda plan: changed(plan, token_budget="all"), "must be an integer or None, not 'all'"),
}


class Spoiler:
    """Spoils the second plan it sees."""

    def __init__(self, spoil: Callable[[Plan], Any]) -> None:
        self.spoil = spoil
        self.num_plans = 0

    def __call__(self, plan: Plan) -> Any:
        self.num_plans += 1
        return self.spoil(plan) if self.num_plans == 2 else plan


@pytest.mark.parametrize("by", ["plan", "revise"])
@pytest.mark.parametrize(("spoil", "problem"), INVALID.values(), ids=INVALID)
def test_an_invalid_plan_fails_its_rows(by: str, spoil: Callable[[Plan], Any], problem: str) -> None:
    spoiler = Spoiler(spoil)

    def plan(view: StepView) -> Any:
        whole = Plan(view.rows, view.num_pending)
        return spoiler(whole) if by == "plan" else whole

    if by == "plan":
        engine = virtual_engine(policy(plan))
    else:
        engine = virtual_engine(Continuous, modifier(lambda plan, view: spoiler(plan)))
    culprit = {"plan": "scripted", "revise": "revising"}[by]

    heard = Heard()
    add(engine, "a", [5] * 3, PARAMS)
    add(engine, "b", [6] * 4, PARAMS)
    step(engine, heard)
    assert not any(heard.finals.values())
    step(engine, heard)
    for request in ("a", "b"):
        error = heard.error(request)
        assert error.startswith(f"plugin {culprit!r} failed in {by}: ") and problem in error
        assert "\n" not in error
    assert not engine.has_work
    add(engine, "c", [5] * 3, PARAMS)
    assert drain(engine, heard).output("c") == tokens_alone([5] * 3, PARAMS)


@pytest.mark.parametrize(
    "plan",
    [
        lambda view: Plan(view.rows.astype(np.int32), view.num_pending.astype(np.uint8)),
        lambda view: Plan(view.rows, view.num_pending, victims=rows(77, -1)),
        lambda view: Plan(view.rows, view.num_pending, token_budget=10**12),
        lambda view: Plan(view.rows, np.full(len(view.rows), 2**62)),
        lambda view: Plan(view.rows[:1], np.zeros(1, dtype=np.int64)),
        lambda view: Plan(NO_ROWS, NO_ROWS, token_budget=0),
    ],
)
def test_an_odd_plan_is_a_plan(plan: Callable[[StepView], Plan]) -> None:
    engine = virtual_engine(policy(plan))
    add(engine, "a", [5] * 3, PARAMS)
    add(engine, "b", [6] * 4, PARAMS)
    heard = drain(engine)
    assert heard.output("a") == tokens_alone([5] * 3, PARAMS)
    assert heard.output("b") == tokens_alone([6] * 4, PARAMS)
