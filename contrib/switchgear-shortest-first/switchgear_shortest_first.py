"""Serve waiting prompts shortest first, so that a short one does not queue behind a long one.

Buys a lower mean time to first token when lengths are mixed: of all orders, shortest first has the smallest mean wait.
Costs the long prompts some patience, and no more than that: whoever has waited `max_wait` seconds goes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Modifier
from switchgear.core.records import TOKEN_EQUAL, IntArray, Plan, StepView

RUNNING, OVERDUE, FRESH = 0, 1, 2
"""The three groups, in the order in which they are served."""


class ShortestFirst:
    """Serves waiting rows by the number of prompt tokens left to compute, the smallest first."""

    name = "shortest_first"
    equivalence = TOKEN_EQUAL
    requires = ()
    conflicts = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        max_wait: Annotated[float, msgspec.Meta(ge=0)] = 10.0
        """Seconds after which a waiting row is served in order of arrival, before every shorter one."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def schedule_step(self) -> Modifier:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        """The same rows and counts: running ones as they were, then overdue ones, then the others by length."""
        entry = entries(plan, view)
        arrival = view.arrival[entry]
        is_overdue = view.now - arrival >= self.config.max_wait
        group = np.where(entry < view.num_running, RUNNING, np.where(is_overdue, OVERDUE, FRESH))
        # lexsort goes by its last key first and is stable: what ties in all of them keeps the policy's order
        by_length = np.where(group == FRESH, view.num_pending[entry], 0)
        by_priority = np.where(group == FRESH, view.priority[entry], 0)
        by_arrival = np.where(group == OVERDUE, arrival, 0.0)
        order = np.lexsort((by_length, by_priority, by_arrival, group))
        return replace(
            plan,
            order=plan.order[order],
            num_tokens=plan.num_tokens[order],
            num_drafts=plan.num_drafts[order] if len(plan.num_drafts) else plan.num_drafts,
        )


def entries(plan: Plan, view: StepView) -> IntArray:
    """`[P]` where each row of the plan stands in the view."""
    by_row = np.argsort(view.rows)
    return by_row[np.searchsorted(view.rows, plan.order, sorter=by_row)]
