"""Counts that begin anew with each step: a plugin around the executor that tells the kit where a step begins."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..config import PluginConfig
from ..hooks import hookimpl
from ..interfaces import Executor
from ..records import TOKEN_EQUAL, Batch

Calls = Counter[tuple[str, str]]
"""How often each (hook, method) was called."""


class Steps:
    """An executor around another that opens a new count with each step."""

    def __init__(self, inner: Executor, per_step: list[Calls]) -> None:
        self.inner, self.per_step = inner, per_step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, batch: Batch) -> int:
        self.per_step.append(Counter())
        return self.inner.submit(batch)


def step_marks(per_step: list[Calls]) -> type:
    """A plugin that opens a new count in `per_step` with each step."""

    class StepMarks:
        """Tells the kit where a step begins."""

        name = "kit_steps"
        equivalence = TOKEN_EQUAL

        class Config(PluginConfig):
            pass

        def __init__(self, config: Config) -> None: ...

        @hookimpl
        def execute(self, inner: Executor) -> Steps:
            return Steps(inner, per_step)

    return StepMarks
