"""Iteration-level scheduling: a request joins at the next step and leaves at the end of its last one.

Buys throughput wherever outputs differ in length, since no slot idles until the longest of its batch is done; nothing
where all are equal. Costs nothing but the choice. Orca (OSDI'22), section 3.1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core.config import PluginConfig
from ..core.hooks import hookimpl
from ..core.interfaces import Policy
from ..core.records import TOKEN_EQUAL, Plan, StepView


class ContinuousBatching:
    """Admits at every step whoever a slot and KV exist for."""

    name = "continuous_batching"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ("joins_and_leaves_at_once",)
    hook_api = (1, 0)

    class Config(PluginConfig):
        policy: Literal["fcfs", "priority"] = "fcfs"
        """Who is admitted first: the first to come, or the lowest `priority` and then the first to come."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def schedule_step(self) -> Policy:
        return self

    def plan(self, view: StepView) -> Plan:
        """Everybody: those who run in the order of admission, then those who wait in the order of the policy."""
        running, waiting = np.arange(view.num_running), np.arange(view.num_running, len(view.rows))
        # by arrival, not as they queue: who was held until now may have come before those who queue
        first_come = waiting[np.argsort(view.arrival[waiting], kind="stable")]
        if self.config.policy == "fcfs":
            order = np.concatenate([running, first_come])
            return Plan(view.rows[order], view.num_pending[order])
        order = np.concatenate([running, first_come[np.argsort(view.priority[first_come], kind="stable")]])
        # the least important gives way first, and of equals the last admitted
        victims = running[np.lexsort((-running, -view.priority[running]))]
        return Plan(view.rows[order], view.num_pending[order], victims=view.rows[victims])
