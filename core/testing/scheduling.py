"""Invariants of scheduling, watched step by step: joining and leaving, the token budget, decodes that never stall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..engine.sequence import Sequence as Row
from ..engine.sequence import State
from ..records import Batch, Plan
from ..sampling_params import SamplingParams
from .failure import KitFailure
from .histories import Histories, run_machine, single
from .subject import Plugins, Subject
from .virtual_run import Observer, VirtualRun, company
from .watching import Call, watch

MAX_STANDSTILL = 40
"""Steps that a running sequence may be left out, or a waiting one overtaken, before it counts as starved."""

NUM_STREAM_STEPS = 120


def num_blocks(tokens: int, run: VirtualRun) -> int:
    return -(-tokens // run.engine.parts.kv.block_size)


class Joins(Observer):
    """Nobody waits who could run, and whoever came first has had at least as many steps."""

    def __init__(self) -> None:
        self.num_steps: Counter[int] = Counter()
        """By row."""

    def before_step(self, run: VirtualRun) -> None:
        self.num_preempted = run.engine.driver.num_preempted

    def on_submit(self, run: VirtualRun, batch: Batch) -> None:
        self.num_steps.update(batch.rows.tolist())
        waiting = list(run.engine.requests.waiting.values())
        has_slot = len(run.engine.requests.running) < run.engine.parts.limits.max_num_seqs
        if waiting and has_slot and run.engine.driver.num_preempted == self.num_preempted:
            left = run.engine.parts.limits.max_step_tokens - len(batch.token_ids)
            num_free = run.engine.driver.allocator.value.num_free()
            # whichever of them the policy prefers, it would have fitted
            if all(row.num_pending <= left and num_blocks(row.num_tokens, run) <= num_free for row in waiting):
                self.problem = (
                    f"{waiting[0].request} waits although a slot, {num_free} blocks and {left} tokens of the step are "
                    f"free for its {waiting[0].num_pending} tokens"
                )

    def after_step(self, run: VirtualRun) -> None:
        alive = sorted(run.engine.requests.by_row.values(), key=lambda row: (row.priority, row.row))
        for earlier, later in pairwise(alive):
            if earlier.priority == later.priority and self.num_steps[earlier.row] < self.num_steps[later.row]:
                self.problem = (
                    f"{later.request} came after {earlier.request} and has had {self.num_steps[later.row]} steps, "
                    f"the earlier one {self.num_steps[earlier.row]}"
                )


class Budget(Observer):
    """No step has more tokens than the plugin's own plan allows."""

    def __init__(self) -> None:
        self.budget: int | None = None

    def on_call(self, call: Call) -> None:
        if isinstance(call.result, Plan):
            self.budget = call.result.token_budget

    def on_submit(self, run: VirtualRun, batch: Batch) -> None:
        if self.budget is None:
            self.problem = "its plan names no token_budget, so there is nothing that it keeps"
        elif len(batch.token_ids) > self.budget:
            self.problem = f"the step has {len(batch.token_ids)} tokens, its plan's token_budget is {self.budget}"


class Decodes(Observer):
    """Each running decode has its token in every step, and prompts that were begun go before new ones."""

    def before_step(self, run: VirtualRun) -> None:
        running = run.engine.requests.running.values()
        self.decodes = [row for row in running if row.num_pending == 1]
        self.begun = [row for row in running if row.num_pending > 1]

    def on_submit(self, run: VirtualRun, batch: Batch) -> None:
        in_step = set(batch.rows.tolist())
        left_out = absent(self.decodes, in_step)
        if left_out:
            self.problem = f"{left_out[0].request} has one token to compute and is not in the step"
        known = {row.row for row in [*self.decodes, *self.begun]}
        passed = absent(self.begun, in_step)
        if passed and in_step - known:
            self.problem = f"a new request runs, and {passed[0].request}, whose prompt was begun, does not"


def absent(rows: Sequence[Row], in_step: set[int]) -> list[Row]:
    """Those that still run and are not in the step; who was preempted meanwhile is excused."""
    return [row for row in rows if row.state is State.RUNNING and row.row not in in_step]


class JoinHistories(Histories):
    requests = single
    may_preempt = False

    def look_on(self) -> tuple[list[Observer], list[type]]:
        return [Joins()], []


class BudgetHistories(Histories):
    plugin: Subject

    def look_on(self) -> tuple[list[Observer], list[type]]:
        budget = Budget()
        return [budget], [watch(self.plugin.cls, budget.on_call)]


class DecodeHistories(Histories):
    def look_on(self) -> tuple[list[Observer], list[type]]:
        return [Decodes()], []


def joins_and_leaves_at_once(subject: Subject) -> None:
    for plugins in (subject.alone, subject.beside(["paged_kv"])):
        run_machine(JoinHistories, plugins=plugins, classes=subject.classes)


def keeps_token_budget(subject: Subject) -> None:
    for plugins in (subject.alone, company(subject)):
        run_machine(BudgetHistories, plugins=plugins, classes=subject.classes, plugin=subject)


def never_stalls_decodes(subject: Subject) -> None:
    for plugins in (subject.alone, company(subject)):
        run_machine(DecodeHistories, plugins=plugins, classes=subject.classes)


# -- nobody waits for ever ------------------------------------------------------------------------------------------


class Standstill(Observer):
    """How long each sequence has been standing still."""

    def __init__(self) -> None:
        self.num_steps: Counter[int] = Counter()

    def after_step(self, run: VirtualRun) -> None:
        moved = {row for batch in run.batches for row in batch.rows.tolist()}
        for row in run.engine.requests.running.values():
            self.num_steps[row.row] = 0 if row.row in moved else self.num_steps[row.row] + 1
            if self.num_steps[row.row] > MAX_STANDSTILL:
                self.problem = f"{row.request} runs and has had no token for {MAX_STANDSTILL} steps: it starves"
        for row in run.engine.requests.waiting.values():
            if row.num_overtaken > MAX_STANDSTILL:
                self.problem = f"{row.request} waits and was overtaken {row.num_overtaken} times: it starves"


def starves_nobody(subject: Subject) -> None:
    """More requests than can be served keep coming; every one that came early is served all the same."""
    for plugins in (subject.alone, company(subject)):
        check_stream(plugins, subject.classes)


def check_stream(plugins: Plugins, classes: Sequence[type]) -> None:
    run = VirtualRun(plugins, classes, num_tokens=192, observers=[Standstill()], max_overtaken=4)
    long = SamplingParams(max_tokens=20, seed=0, ignore_eos=True)
    first = [run.add([3 + index % 7 for index in range(length)], long, priority=5) for length in (40, 3, 17)]
    for step in range(NUM_STREAM_STEPS):
        others = [5 + (step + index) % 30 for index in range(1 + step % 9)]
        run.add(others, replace(long, max_tokens=3 + step % 4, seed=step))
        run.step()
    for name in first:
        if not run.requests[name].finals:
            raise KitFailure(
                f"{name} came first, and while others kept coming it has not finished in {NUM_STREAM_STEPS} steps."
            )
    run.drain()
    run.check_outputs()
