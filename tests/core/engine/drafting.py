"""A plugin that drafts what a test says, and asks for the room to have it verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Draft, DraftView, IntArray, Plan, StepView

NextTokens = Callable[[IntArray, int], Sequence[int]]
"""(all known tokens of a row, how many drafts there is room for) to the drafts."""


class Drafter:
    """Drafts row by row, and remembers what it was told."""

    def __init__(self, next_tokens: NextTokens) -> None:
        self.next_tokens = next_tokens
        self.num_proposed: dict[int, int] = {}
        """By row, since it was last told."""
        self.rounds: list[tuple[int, int, int]] = []
        """(row, drafts proposed, drafts accepted)"""
        self.dropped: list[int] = []

    def propose(self, view: DraftView, num_drafts: IntArray) -> Draft:
        drafts = [
            list(self.next_tokens(tokens, count)) if count else []
            for tokens, count in zip(view.tokens, num_drafts.tolist(), strict=True)
        ]
        self.num_proposed = dict(zip(view.rows.tolist(), map(len, drafts), strict=True))
        width = max(map(len, drafts), default=0)
        tokens = np.array([draft + [0] * (width - len(draft)) for draft in drafts], dtype=np.int64)
        return Draft(tokens.reshape(len(drafts), width), np.array([len(draft) for draft in drafts], dtype=np.int64))

    def commit(self, rows: IntArray, num_accepted: IntArray) -> None:
        for row, count in zip(rows.tolist(), num_accepted.tolist(), strict=True):
            self.rounds.append((row, self.num_proposed.pop(row, 0), count))

    def drop(self, rows: IntArray) -> None:
        self.dropped += rows.tolist()


def drafting(next_tokens: NextTokens, num_drafts: int | None = 3) -> type:
    """The plugin: a proposer, and a modifier that gives every row `num_drafts` drafts, or leaves the plan as it is."""

    class Drafting:
        """Drafts what the test says."""

        name = "drafting"
        equivalence = TOKEN_EQUAL

        class Config(PluginConfig):
            pass

        def __init__(self, config: Config) -> None:
            self.drafter = Drafter(next_tokens)

        @hookimpl
        def propose_tokens(self) -> Drafter:
            return self.drafter

        @hookimpl
        def schedule_step(self) -> Drafting:
            return self

        def revise(self, plan: Plan, view: StepView) -> Plan:
            return plan if num_drafts is None else replace(plan, num_drafts=np.full(len(plan.order), num_drafts))

    return Drafting
