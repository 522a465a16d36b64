"""Abort at every point of a request's life: nothing of it stays behind, and the others do not notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..config import PluginConfig
from ..engine.sequence import Sequence, State
from ..hooks import hookimpl
from ..interfaces import Modifier
from ..records import TOKEN_EQUAL, Plan, StepView
from ..sampling_params import SamplingParams
from .failure import KitFailure
from .scenario import TICKET, prompt
from .subject import Subject
from .virtual_run import VirtualRun

MAX_STEPS = 60
"""In which a point of a request's life must have been reached."""


class Pieces:
    """Splits every prompt into pieces of three tokens, so that there is a middle to be aborted in."""

    name = "kit_pieces"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        num_tokens: int = 3
        """Of one piece."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def schedule_step(self) -> Modifier:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        return replace(plan, num_tokens=plan.num_tokens.clip(max=self.config.num_tokens))


Point = Callable[[Sequence], bool]
"""Whether a sequence is there."""

POINTS: Mapping[str, Point] = {
    "queued": lambda row: row.state is State.WAITING and not row.num_preemptions,
    "held": lambda row: row.state is State.HELD and row.child == 0,
    "in the middle of its prompt": lambda row: 0 < row.num_computed < row.num_prompt,
    "decoding": lambda row: row.num_output >= 2,
    "preempted": lambda row: row.state is State.WAITING and row.num_preemptions > 0,
    "with a step in flight": lambda row: row.num_in_flight > 0,
    "as a child that waits for the prompt": lambda row: row.child > 0 and row.state is State.HELD,
    "as a child that shares the prompt": lambda row: row.child > 0 and row.num_output >= 1,
    "as a parent whose children wait": lambda row: row.child == 0 and row.params.n > 1 and row.num_computed > 0,
}
"""The last step of life, the one after the end, is a check of its own."""

BOUNDS: Mapping[str, Mapping[str, Any]] = {
    # two steps at a time, neither of them large enough for all
    "with a step in flight": {"num_tokens": 256, "max_in_flight": 2, "max_step_tokens": 8},
    "preempted": {"num_tokens": 80},
}

OPTIONAL = {"as a child that waits for the prompt", "preempted"}
"""Some allocators share no prompt, and then no child waits for one; some policies never run out of KV."""


def leaves_nothing_behind(subject: Subject, point: str) -> None:
    """Abort a request at one point of its life, whole and each output alone."""
    for child in (None, 0, 1):
        check_abort(subject, point, child)


def check_abort(subject: Subject, point: str, child: int | None) -> None:
    bounds = BOUNDS.get(point, {"num_tokens": 128})
    run = VirtualRun({**subject.alone, "kit_pieces": {}}, (Pieces, *subject.classes), **bounds)
    before = run.engine.driver.allocator.value.num_free()
    params = SamplingParams(max_tokens=14, seed=1, ignore_eos=True)
    others = [run.add(prompt(length, start=1), replace(params, seed=length)) for length in (26, 9)]
    victim = run.add(
        prompt(20), replace(params, max_tokens=18, n=3), hold=TICKET if point == "held" else None, priority=1
    )
    others += [run.add(prompt(length, start=2), replace(params, seed=length)) for length in (18, 21)]
    for _ in range(MAX_STEPS):
        rows = [row for row in run.engine.requests if row.request == victim]
        if any(map(POINTS[point], rows)):
            break
        run.step()
    else:
        if point in OPTIONAL:
            return
        raise KitFailure(f"a request never was {point} in {MAX_STEPS} steps, so that it could not be aborted there.")
    run.abort(victim, child)
    run.check_books()
    run.engine.complete(TICKET)
    check_end(run, before, f"aborted {point}")


def ignores_an_abort_after_the_end(subject: Subject) -> None:
    """A request that has finished can be aborted again and again."""
    run = VirtualRun(subject.alone, subject.classes, num_tokens=128)
    before = run.engine.driver.allocator.value.num_free()
    name = run.add(prompt(20), SamplingParams(max_tokens=6, seed=1, n=2))
    run.drain()
    for child in (None, 0, 1):
        run.engine.abort(name, child)
        run.check_books()
    check_end(run, before, "aborted after the end")


def check_end(run: VirtualRun, num_free: int, when: str) -> None:
    """Everybody else finishes with the right tokens, and all KV is there again."""
    try:
        run.drain()
        run.check_outputs()
    except KitFailure as error:
        raise KitFailure(f"{when}: {error}") from error
    left = run.engine.driver.allocator.value.num_free()
    if left != num_free:
        raise KitFailure(f"{when}: {num_free - left} of {num_free} blocks were not given back.")
