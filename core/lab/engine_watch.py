"""What an engine in this process tells during a run beside its answers."""

from __future__ import annotations

from ..gateway.llm import LLM
from .plugin_counters import acceptance_rate


class EngineWatch:
    """Looks at an engine after each step from its making on; `extras` is what was seen, by the names of metrics."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.engine = llm._engine
        self.num_blocks = self.engine.parts.kv.num_blocks
        self.steps, self.rows = self.engine.num_steps, self.engine.step_rows
        self.driver = self.engine.driver
        self.num_preempted = -self.driver.num_preempted
        self.counters = llm.stats()
        self.step_seconds = self.engine.step_seconds
        self.seconds = self.used_seconds = 0.0
        """Time in steps, and the same times the share of the KV pool that was in use."""

    def look(self) -> None:
        """After a step."""
        if self.driver is not self.engine.driver:
            # the books were started anew
            self.num_preempted += self.driver.num_preempted
            self.driver = self.engine.driver
        seconds = self.engine.step_seconds - self.step_seconds
        self.step_seconds = self.engine.step_seconds
        self.seconds += seconds
        self.used_seconds += seconds * (1 - self.engine.count_free_blocks() / self.num_blocks)

    def extras(self) -> dict[str, float]:
        found: dict[str, float] = {"preemptions": self.num_preempted + self.driver.num_preempted}
        if num_steps := self.engine.num_steps - self.steps:
            found["batch_size"] = (self.engine.step_rows - self.rows) / num_steps
        if self.seconds:
            found["kv_residency"] = self.used_seconds / self.seconds
        if (rate := acceptance_rate(self.counters, self.llm.stats())) is not None:
            found["acceptance_rate"] = rate
        return found
