"""Random histories of a virtual engine: whatever comes, in whatever order, what has to hold holds after every step.

Hypothesis draws them, derandomized, so that a run repeats; a failure is shrunk to the shortest history that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from ..errors import ConfigError, RequestError, SwitchgearError
from ..sampling_params import SamplingParams
from .subject import Plugins
from .virtual import MAX_MODEL_LEN, VOCAB_SIZE
from .virtual_run import Observer, VirtualRun

NUM_EXAMPLES = 20
"""Histories of one check."""
SETTINGS = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 5),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    ignore_eos=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
    n=st.sampled_from([1, 1, 1, 2, 3]),
)
single = st.builds(
    SamplingParams, max_tokens=st.integers(1, 16), seed=st.integers(0, 5), temperature=st.just(1.0), n=st.just(1)
)
"""One output a request, for invariants that count steps by request."""


class Histories(RuleBasedStateMachine):
    """Requests come, are aborted and preempted in between steps; at the end every output is right."""

    plugins: Plugins
    classes: Sequence[type] = ()
    requests = params
    may_preempt = True

    def look_on(self) -> tuple[list[Observer], list[type]]:
        """Who looks on at one history, and plugin classes that tell them more than the engine does."""
        return [], []

    @initialize(
        num_tokens=st.integers(32, 112),
        num_groups=st.sampled_from([1, 1, 2]),
        max_num_seqs=st.integers(1, 6),
        max_step_tokens=st.integers(8, 48),
        max_overtaken=st.integers(1, 6),
    )
    def build(self, **engine: Any) -> None:
        observers, watched = self.look_on()
        try:
            self.run_ = tight_run(self.plugins, (*watched, *self.classes), observers=observers, **engine)
        except SwitchgearError:
            assume(False)

    @rule(
        lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
        start=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 1]),
        data=st.data(),
    )
    def arrive(self, lengths: list[int], start: int, priority: int, data: st.DataObject) -> None:
        """Some requests with the same options, whose prompts begin alike, so that there is something to share."""
        params = data.draw(self.requests, label="params")
        for length in lengths:
            prompt = [3 + (start + index) % (VOCAB_SIZE - 3) for index in range(length)]
            try:
                self.run_.add(prompt, params, priority=priority)
            except RequestError as error:
                assert "KV blocks" in str(error)

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.run_.step()

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
            self.run_.drain()
            self.run_.check_outputs()


def tight_run(plugins: Plugins, classes: Sequence[type], *, num_tokens: int, **options: Any) -> VirtualRun:
    """An engine whose KV pool has `num_tokens` tokens, or one sequence more where blocks are larger than that."""
    try:
        return VirtualRun(plugins, classes, num_tokens=num_tokens, **options)
    except ConfigError:
        return VirtualRun(plugins, classes, num_tokens=num_tokens + MAX_MODEL_LEN, **options)


def run_machine(machine: type[RuleBasedStateMachine], num_times: int = 1, **attributes: Any) -> None:
    """Run a machine with these class attributes. Raises what the shortest failing history raised.

    num_times: as many histories as usual, for machines whose steps cost little.
    """
    many = settings(SETTINGS, max_examples=num_times * SETTINGS.max_examples)
    run_state_machine_as_test(type(machine.__name__, (machine,), attributes), settings=many)
