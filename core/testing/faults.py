"""A hot method that raises: the rows of that step fail with the plugin's name, and nothing else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..records import Batch
from .failure import KitFailure
from .scenario import play
from .subject import Subject
from .virtual_run import Observer, VirtualRun
from .watching import Call, watch

KEEPS_THE_BOOKS = {("allocate_kv", "audit"), ("allocate_kv", "release")}
"""When these raise, blocks are lost or nobody knows: the engine starts its books again, and everybody fails."""

POOL: dict[str, Any] = {"num_tokens": 128, "num_groups": 2}
"""Little room, and layers that see a window, so that every method is called."""


class Planted(RuntimeError):
    """The fault that the kit plants."""


class Fault(Observer):
    """Raises at one call of one method, and remembers who was there."""

    def __init__(self, place: tuple[str, str], at_call: int) -> None:
        self.place, self.at_call = place, at_call
        self.num_calls = 0
        self.step = -1
        """The step in which it was raised."""
        self.offered: set[str] = set()
        """Requests that the policy could choose from in that step."""

    def on_enter(self, hook: str, method: str) -> None:
        if (hook, method) != self.place:
            return
        self.num_calls += 1
        if self.num_calls == self.at_call:
            self.step = self.now
            raise Planted("planted by the kit")

    def before_step(self, run: VirtualRun) -> None:
        self.now = run.num_steps
        if self.step < 0:
            requests = run.engine.requests
            self.offered = {row.request for row in [*requests.running.values(), *requests.waiting.values()]}

    def on_submit(self, run: VirtualRun, batch: Batch) -> None:
        if self.step < 0:
            # from here on it is a matter of those who were chosen
            self.offered = {run.engine.requests.by_row[row].request for row in batch.rows.tolist()}


def fails_only_the_step_of_a_fault(subject: Subject) -> None:
    """Each hot method in turn raises once, in the middle of a history."""
    for place, count in sorted(calls_in_history(subject).items()):
        if place not in KEEPS_THE_BOOKS:
            check_fault(subject, place, at_call=count // 2 + 1)


def calls_in_history(subject: Subject) -> Counter[tuple[str, str]]:
    calls: list[Call] = []
    play(VirtualRun(subject.alone, [watch(subject.cls, calls.append), *subject.classes], **POOL))
    return Counter(call.place for call in calls)


def check_fault(subject: Subject, place: tuple[str, str], at_call: int) -> None:
    fault = Fault(place, at_call)
    classes: Sequence[type] = [watch(subject.cls, lambda call: None, fault.on_enter), *subject.classes]
    run = VirtualRun(subject.alone, classes, observers=[fault], **POOL)
    where = f"when {place[0]}, method `{place[1]}` raises"
    try:
        play(run)
    except (KitFailure, Planted) as error:
        raise KitFailure(f"{where}: {error}") from error
    if run.engine.num_restarts:
        raise KitFailure(f"{where}, the books no longer balance: change nothing before the last line that can raise.")
    for name, asked in run.requests.items():
        for child, final in asked.finals.items():
            if final.finish_reason == "error":
                if name not in fault.offered:
                    raise KitFailure(f"{where} in step {fault.step}, {name} fails, which was not in it: {final.error}.")
                if subject.name not in final.error:
                    raise KitFailure(f"{where}, the error does not name the plugin: {final.error}.")
            else:
                run.check_tokens(f"{where}, {name} goes on and", asked, child)
