"""Random histories of a virtual engine: whatever comes, in whatever order, what has to hold holds after every step.

Hypothesis draws them, derandomized, so that a run repeats; a failure is shrunk to the shortest history that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..errors import RequestError, SwitchgearError
from ..records import Batch
from ..sampling_params import SamplingParams
from .failure import KitFailure
from .subject import Plugins
from .virtual import VOCAB_SIZE
from .virtual_run import VirtualRun
from .watching import Call

NUM_EXAMPLES = 25
"""Histories of one check."""
SETTINGS = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


class Observer:
    """Looks on at one engine's steps and raises KitFailure when something does not hold."""

    problem = ""
    """What did not hold in the middle of a step, where the engine would take an exception for the plugin's."""

    def before_step(self, run: VirtualRun) -> None: ...

    def on_submit(self, run: VirtualRun, batch: Batch) -> None: ...

    def after_step(self, run: VirtualRun) -> None: ...

    def on_call(self, call: Call) -> None:
        """A hot method of the plugin returned; only where the plugin is watched."""


params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 5),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    ignore_eos=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
    n=st.sampled_from([1, 1, 1, 2, 3]),
)
single = st.builds(
    SamplingParams, max_tokens=st.integers(1, 12), seed=st.integers(0, 5), temperature=st.just(1.0), n=st.just(1)
)
"""One output a request, for invariants that count steps by request."""


class Histories(RuleBasedStateMachine):
    """Requests come, are aborted and preempted in between steps; at the end every output is right."""

    plugins: Plugins
    classes: Sequence[type] = ()
    requests = params
    may_preempt = True

    def make_observers(self) -> list[Observer]:
        return []

    @initialize(
        num_tokens=st.integers(64, 160),
        num_groups=st.sampled_from([1, 1, 2]),
        max_num_seqs=st.integers(1, 6),
        max_step_tokens=st.integers(8, 48),
        max_overtaken=st.integers(1, 6),
    )
    def build(self, **engine: Any) -> None:
        self.observers = self.make_observers()
        try:
            self.run_ = VirtualRun(self.plugins, self.watched(self.classes), **engine)
        except SwitchgearError:
            assume(False)
        self.max_step_tokens = engine["max_step_tokens"]
        self.run_.executor.on_submit.append(self._on_submit)

    def watched(self, classes: Sequence[type]) -> Sequence[type]:
        return classes

    def _on_submit(self, batch: Batch) -> None:
        for observer in self.observers:
            observer.on_submit(self.run_, batch)

    @rule(length=st.integers(1, 30), start=st.integers(0, 2), priority=st.sampled_from([0, 0, 1]), data=st.data())
    def arrive(self, length: int, start: int, priority: int, data: st.DataObject) -> None:
        # prompts begin alike, so that there is something to share
        prompt = [3 + (start + index) % (VOCAB_SIZE - 3) for index in range(length)]
        try:
            self.run_.add(prompt, data.draw(self.requests, label="params"), priority=priority)
        except RequestError as error:
            assert "KV blocks" in str(error)

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        for observer in self.observers:
            observer.before_step(self.run_)
        self.run_.step()
        for batch in self.run_.batches:
            if len(batch.rows) > 1 and len(batch.token_ids) > self.max_step_tokens:
                raise KitFailure(f"a step has {len(batch.token_ids)} tokens, max_step_tokens is {self.max_step_tokens}")
        for observer in self.observers:
            observer.after_step(self.run_)
            if observer.problem:
                raise KitFailure(f"step {self.run_.num_steps}: {observer.problem}.")

    @precondition(lambda self: self.run_.requests)
    @rule(which=st.integers(0, 100), child=st.sampled_from([None, None, 0, 1, 2]))
    def abort(self, which: int, child: int | None) -> None:
        self.run_.abort(f"request {which % len(self.run_.requests)}", child)
        self.run_.check_books()

    @precondition(lambda self: self.may_preempt and self.run_.num_steps)
    @rule()
    def preempt_all(self) -> None:
        self.run_.engine.preempt_all()
        self.run_.check_books()

    def teardown(self) -> None:
        if hasattr(self, "run_"):
            while self.run_.engine.has_work:
                self.step()
            self.run_.drain()
            self.run_.check_outputs()


def check_histories(machine: type[Histories], **attributes: Any) -> None:
    """Run a machine with these class attributes. Raises what the shortest failing history raised."""
    run_state_machine_as_test(type(machine.__name__, (machine,), attributes), settings=SETTINGS)  # type: ignore[no-untyped-call]


MakeObserver = Callable[[], Observer]
