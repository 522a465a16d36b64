"""Policies and modifiers for tests: a plain one, one written by the test, and one that does whatever it likes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import NO_ROWS, TOKEN_EQUAL, IntArray, Plan, StepView


def rows(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int64)


class Continuous:
    """Always admits: every row on offer with all it has pending."""

    name = "continuous"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        pass

    @hookimpl
    def schedule_step(self) -> Continuous:
        return self

    def plan(self, view: StepView) -> Plan:
        return Plan(order=view.rows, num_tokens=view.num_pending)


def policy(plan: Callable[[StepView], Plan]) -> type:
    """A policy that plans what the test says."""

    class Scripted(Continuous):
        """Plans what the test says."""

        name = "scripted"

        def plan(self, view: StepView) -> Plan:
            return plan(view)

    return Scripted


def modifier(revise: Callable[[Plan, StepView], Plan], its_name: str = "revising") -> type:
    """A modifier that does what the test says."""

    class Revising:
        """Revises as the test says."""

        name = its_name
        equivalence = TOKEN_EQUAL

        class Config(PluginConfig):
            pass

        def __init__(self, config: Config) -> None:
            pass

        @hookimpl
        def schedule_step(self) -> Revising:
            return self

        def revise(self, plan: Plan, view: StepView) -> Plan:
            return revise(plan, view)

    return Revising


class AnyPolicy:
    """Plans any valid plan, wise or not."""

    name = "any_policy"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        seed: int = 0
        """Of its whims."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.budget: int | None = None
        """What it named last."""

    @hookimpl
    def schedule_step(self) -> AnyPolicy:
        return self

    def plan(self, view: StepView) -> Plan:
        random = np.random.default_rng([self.config.seed, view.step, round(view.now * 1000)])
        order = random.permutation(view.rows)[: random.integers(0, len(view.rows) + 1)]
        pending = dict(zip(view.rows.tolist(), view.num_pending.tolist(), strict=True))
        counts = np.array([pending[row] for row in order.tolist()], dtype=np.int64)
        if random.random() < 0.5:
            counts = random.integers(0, counts + 3)
        self.budget = int(random.integers(-1, 20)) if random.random() < 0.3 else None
        return Plan(
            order=order,
            num_tokens=counts,
            num_drafts=random.integers(0, 4, len(order)) if random.random() < 0.3 else NO_ROWS,
            token_budget=self.budget,
            victims=random.permutation(view.rows)[:2] if random.random() < 0.5 else NO_ROWS,
        )


class AnyModifier:
    """Makes any valid plan of another, also such as a modifier has no right to."""

    name = "any_modifier"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        seed: int = 0
        """Of its whims."""

    def __init__(self, config: Config) -> None:
        self.policy = AnyPolicy(AnyPolicy.Config(seed=config.seed))

    @hookimpl
    def schedule_step(self) -> AnyModifier:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        wish = self.policy.plan(view)
        return plan if len(wish.order) < len(view.rows) // 2 else wish
