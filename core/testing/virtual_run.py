"""One virtual engine, all that it said, and the checks that hold after every step whatever is switched on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import build_config
from ..defaults import make_registry
from ..engine.assemble import assemble
from ..engine.emission import Emission
from ..engine.engine import Engine
from ..errors import SwitchgearError
from ..model.shape_only import BYTES_PER_TOKEN, no_reader
from ..recipes import SCHEDULING
from ..records import TOKEN_EQUAL, Batch, Device
from ..sampling_params import SamplingParams
from .failure import KitFailure
from .subject import Options, Plugins, Subject, classes_of
from .virtual import MAX_MODEL_LEN, Virtual, VirtualExecutor, tokens_alone, virtual_model, virtual_vocabulary

MAX_IDLE_STEPS = 4
"""Steps without a token that the engine itself needs to see that nobody can get KV."""


class Clock:
    """Seconds that pass only when they are read, so that a run repeats; fast enough for patience to run out."""

    def __init__(self, tick: float = 0.25) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@dataclass(slots=True)
class Asked:
    """A request, and what came of each of its outputs."""

    prompt: list[int]
    params: SamplingParams
    arrival: int
    """The step before which it came."""
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finals: dict[int, Emission] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    def reason(self, child: int = 0) -> str:
        return self.finals[child].finish_reason or "" if child in self.finals else "nothing"


class Observer:
    """Looks on at the steps of one run. What does not hold is a sentence in `problem`: in the middle of a step the
    engine would take an exception for the plugin's."""

    problem = ""

    def before_step(self, run: VirtualRun) -> None: ...

    def on_submit(self, run: VirtualRun, batch: Batch) -> None:
        """KV was taken for the step, and it is about to be run."""

    def after_step(self, run: VirtualRun) -> None: ...


class VirtualRun:
    """An engine over the virtual executor, driven step by step.

    plugins: who is on; classes: those that are not installed; num_tokens: the KV pool, in tokens of each group;
    engine: options of the `[engine]` section. Raises what the engine raises if the plugins refuse.
    """

    def __init__(
        self,
        plugins: Plugins,
        classes: Sequence[type] = (),
        *,
        num_tokens: int = 4 * MAX_MODEL_LEN,
        num_groups: int = 1,
        max_in_flight: int = 1,
        observers: Sequence[Observer] = (),
        **engine: Any,
    ) -> None:
        sections = {
            "engine": {
                "max_num_seqs": 4,
                "max_step_tokens": 64,
                "kv_bytes": num_tokens * num_groups * BYTES_PER_TOKEN,
                **engine,
            },
            "plugins": {"kit_virtual": {"max_in_flight": max_in_flight}, **plugins},
        }
        config = build_config(sections=sections)
        registry = make_registry(config, (Virtual, *classes_of(plugins, classes)))
        device, spec = Device("cpu", "float32"), virtual_model(num_groups)
        self.engine: Engine = assemble(
            config, registry, spec, no_reader, device, clock=Clock(), vocabulary=virtual_vocabulary
        ).engine
        self.engine.start()
        registry.every("control", engine=self.engine)
        self.executor: VirtualExecutor = registry.plugins[0].instance.executor  # type: ignore[attr-defined]
        self.executor.on_submit.append(self._on_submit)
        self.is_exact = registry.equivalence() == TOKEN_EQUAL
        """Whether the plugins promise the tokens of everything-off."""
        self.observers = observers
        self.num_groups = num_groups
        self.requests: dict[str, Asked] = {}
        self.batches: list[Batch] = []
        """Of the last step."""
        self.num_steps = self.num_idle = 0
        self.problem = ""

    def _on_submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        limit = self.engine.parts.limits.max_step_tokens
        if len(batch.rows) > 1 and len(batch.token_ids) > limit:
            self.problem = f"the step has {len(batch.token_ids)} tokens, max_step_tokens is {limit}"
        if any(len(np.unique(slots)) < len(slots) for slots in batch.slots):
            self.problem = "two tokens are written to one slot: a block stands in two tables and was not copied"
        for observer in self.observers:
            observer.on_submit(self, batch)

    def add(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> str:
        """Queue a request and return its name. Raises RequestError for what can never run."""
        request = f"request {len(self.requests)}"
        self.engine.add(request, np.array(prompt, dtype=np.int64), params, **options)
        self.requests[request] = Asked(list(prompt), params, self.num_steps)
        return request

    def abort(self, request: str, child: int | None = None) -> None:
        asked = self.requests[request]
        asked.aborted |= set(range(asked.params.n) if child is None else [child])
        self.engine.abort(request, child)

    def step(self) -> None:
        """One step, after which the books balance and somebody has got on."""
        self.batches.clear()
        for observer in self.observers:
            observer.before_step(self)
        has_work = self.engine.has_work and not self.engine.is_waiting_for_tickets
        emissions = self.engine.step()
        for emission in emissions:
            self._enter(emission)
        self.num_steps += 1
        self.num_idle = 0 if self.batches or emissions or not has_work else self.num_idle + 1
        if self.num_idle > MAX_IDLE_STEPS:
            raise KitFailure(f"deadlock: {self.num_idle} steps without a token, although {self._unfinished()} wait.")
        if self.problem:
            raise KitFailure(f"step {self.num_steps}: {self.problem}.")
        self.check_books()
        for observer in self.observers:
            observer.after_step(self)
            if observer.problem:
                raise KitFailure(f"step {self.num_steps}: {observer.problem}.")

    def _enter(self, emission: Emission) -> None:
        asked = self.requests[emission.request]
        if emission.child in asked.finals:
            raise KitFailure(f"{emission.request}, output {emission.child} says something after its end.")
        asked.tokens[emission.child] += emission.token_ids
        if emission.finish_reason is not None:
            asked.finals[emission.child] = emission

    def _unfinished(self) -> str:
        return ", ".join(name for name, asked in self.requests.items() if len(asked.finals) < asked.params.n)

    def check_books(self) -> None:
        problems = self.engine.audit()
        if problems:
            raise KitFailure(f"after step {self.num_steps} the books do not balance: {'; '.join(problems)}.")

    def drain(self, max_steps: int = 3000) -> None:
        """Step until nothing is left, and see that nothing of it stays behind."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        else:
            raise KitFailure(f"livelock: after {max_steps} steps {self._unfinished()} have not finished.")
        audit = self.engine.driver.allocator.value.audit()
        if audit.held:
            raise KitFailure(f"leak: nothing runs any more and {audit.held} blocks are held.")

    def check_outputs(self) -> None:
        """Every output is what its request gets alone; an aborted one is the beginning of that, a failed one fails."""
        if self.engine.num_restarts:
            raise KitFailure(f"the engine lost its books {self.engine.num_restarts} times and was restarted.")
        for name, asked in self.requests.items():
            for child in range(asked.params.n):
                self._check_output(name, asked, child)

    def _check_output(self, name: str, asked: Asked, child: int) -> None:
        reason = asked.reason(child)
        where = f"{name} (prompt of {len(asked.prompt)} tokens), output {child}"
        may_abort = child in asked.aborted
        if reason not in (("stop", "length", "abort") if may_abort else ("stop", "length")):
            error = asked.finals[child].error if child in asked.finals else ""
            raise KitFailure(f"{where} ended with {reason!r}: {error or 'it should have finished'}")
        self.check_tokens(where, asked, child)

    def check_tokens(self, where: str, asked: Asked, child: int) -> None:
        """What an output has so far, or in all, is what its request gets alone."""
        if not self.is_exact:
            return
        output = tuple(asked.tokens[child])
        expected = tokens_alone(tuple(asked.prompt), asked.params, child, self.num_groups)
        if asked.reason(child) == "abort":
            expected = expected[: len(output)]
        if output != expected:
            raise KitFailure(f"{where} got the tokens {output}, alone it gets {expected}: it read KV of another.")


def company(subject: Subject) -> dict[str, Options]:
    """The plugin, and as many of the recommended schedulers as start beside it; another policy gives way to it."""
    chosen = [subject.name]
    for name in SCHEDULING:
        try:
            VirtualRun(subject.beside([*chosen, name]), subject.classes)
        except SwitchgearError:
            continue
        chosen.append(name)
    return subject.beside(chosen)
