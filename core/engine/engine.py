"""The engine: a queue of sequences and the step that moves them. Reads with every plugin deleted."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import zlib
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Literal

import numpy as np

from ..errors import PluginFault, RequestError
from ..interfaces import stores_kv
from ..records import (
    BlockCopy,
    Draft,
    Event,
    IntArray,
    Plan,
    Pooling,
    StepOutput,
    StepView,
)
from ..sampling_params import SamplingParams
from .admission import check_request, new_sequences
from .audit import audit_engine
from .batching import make_batch
from .choosing import Choosing
from .driver import Chosen, Driver, running_part
from .emission import Emission, FinishReason, emission_of
from .outcome import Outcome, most_likely_outcomes, outcomes
from .parts import Parts, Submitted
from .requests import Requests
from .sequence import Sequence

logger = logging.getLogger(__name__)

MAX_STALLED_STEPS = 3
"""Steps in which nobody got KV although nothing is in flight, before the first in line is failed."""


class Engine:
    """Steps sequences to their end. One thread calls it; only `complete` may come from another."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.executor = parts.executor.value
        self.num_groups = parts.num_groups if stores_kv(self.executor) else 0
        """Groups whose block tables a batch carries: none where nothing reads them."""
        self.choosing = Choosing(parts)
        self.in_flight: deque[Submitted] = deque()
        self.at_risk: list[Sequence] = []
        """Who fails if the stage that runs now fails."""
        self.emissions: list[Emission] = []
        self.events: list[Event] = []
        self.wake = threading.Event()
        self.num_steps = 0
        self.num_stalled = 0
        self.num_restarts = 0
        self.step_rows = 0
        self.step_tokens = 0
        self.step_seconds = 0.0
        """Sums over the steps, from which rates are made."""
        self._row_numbers = itertools.count()
        self._reset()

    def _reset(self) -> None:
        parts = self.parts
        self.requests = Requests(parts.max_overtaken, self._row_numbers)
        self.driver = Driver(
            self.requests,
            parts.limits,
            parts.policy,
            parts.modifiers,
            parts.make_allocator(),
            parts.kv,
            parts.kv_spec,
            proposer=parts.proposer.plugin if parts.proposer else None,
            on_preempt=self._on_preempt,
        )

    def start(self) -> None:
        """Load the weights and make the KV tensors."""
        with self.parts.registry.blaming():
            self.executor.start()
            self.executor.allocate(tuple(group.num_blocks for group in self.parts.kv_spec))

    def close(self) -> None:
        for sequence in self.requests:
            self._end(sequence, "abort")
        self.executor.close()

    # -- the step ---------------------------------------------------------------------------------------------------

    def step(self) -> list[Emission]:
        """plan, grow, propose, execute, verify, commit, emit. Returns what there is to say; empty when idle."""
        try:
            while len(self.in_flight) < self.executor.max_in_flight:
                plan, view = self.plan()
                if plan is None or view is None:
                    break
                chosen, copies = self.grow(plan, view)
                if not chosen:
                    break
                draft = self.propose(chosen)
                self.execute(chosen, copies, draft)
            if self.in_flight:
                step, output = self.collect()
                results = self.verify(step, output)
                self.commit(results)
                self.emit(step, results)
            self.publish()
        except Exception as error:
            self.fail(error)
        emissions, self.emissions = self.emissions, []
        return emissions

    def plan(self) -> tuple[Plan | None, StepView | None]:
        """What the policy and its modifiers want of the rows on offer; nothing when nobody is."""
        self.requests.wake_completed()
        self.at_risk = offered = self.requests.offered()
        if not offered:
            return None, None
        view = self.driver.view(offered, self.num_steps, self.parts.clock(), self.parts.seed)
        return self.driver.plan(view), view

    def grow(self, plan: Plan, view: StepView) -> tuple[list[Chosen], list[BlockCopy]]:
        """As much of the plan as there are slots, tokens and KV for."""
        chosen, copies = self._grow(wishes := self.driver.fit(plan, view), plan)
        if not chosen and view.num_running:
            # who was to be admitted got no KV: those who run go on
            chosen, copies = self._grow(wishes := self.driver.fit(running_part(plan, view), view), plan)
        self.num_stalled = 0 if chosen or self.in_flight else self.num_stalled + 1
        if self.num_stalled >= MAX_STALLED_STEPS:
            self._fail_stalled(wishes[0].sequence)
        now = self.parts.clock()
        for wish in chosen:
            if math.isnan(wish.sequence.timing.scheduled):
                wish.sequence.timing.scheduled = now
                self._record("admitted", wish.sequence)
        return chosen, copies

    def propose(self, chosen: list[Chosen]) -> Draft:
        """Drafts for the rows that were given room for some."""
        self.at_risk = [wish.sequence for wish in chosen]
        return self.choosing.propose(self.num_steps, chosen)

    def execute(self, chosen: list[Chosen], copies: list[BlockCopy], draft: Draft) -> None:
        """Hand the step to the executor."""
        sampling = np.array([index for index, wish in enumerate(chosen) if wish.samples], dtype=np.int64)
        batch = make_batch(self.num_steps, chosen, sampling, copies, draft, self.parts.kv.block_size, self.num_groups)
        started = self.parts.clock()
        ticket = self.executor.submit(batch)
        for wish, num_drafts in zip(chosen, draft.lens.tolist(), strict=True):
            wish.sequence.num_in_flight = wish.num_tokens + num_drafts
        self.in_flight.append(Submitted(ticket, chosen, sampling, draft, started))
        self.num_steps += 1
        self.step_rows += len(chosen)
        self.step_tokens += len(batch.token_ids)

    def collect(self) -> tuple[Submitted, StepOutput]:
        """The oldest step in flight, as soon as it is done."""
        step = self.in_flight.popleft()
        self.at_risk = [wish.sequence for wish in step.chosen]
        for sequence in self.at_risk:
            sequence.num_in_flight = 0
        return step, self.executor.collect(step.ticket)

    def verify(self, step: Submitted, output: StepOutput) -> list[Outcome]:
        """Sample every row that has no more to compute, see which drafts stand, and cut where an output ends."""
        max_model_len = self.parts.limits.max_model_len
        if output.scores is None and output.pooled is None:
            tokens = self.choosing.most_likely(step, output)
            if tokens is not None:
                return most_likely_outcomes(step.chosen, step.sampling, tokens, max_model_len)
        verified, starts = self.choosing.verify(step, output)
        return outcomes(step.chosen, step.sampling, starts, verified, output, max_model_len)

    def commit(self, results: list[Outcome]) -> None:
        """What was computed and accepted becomes the row's own, and may be found by others."""
        for result in results:
            sequence = result.sequence
            sequence.tokens.extend(result.token_ids)
            sequence.num_computed += result.num_computed
            if result.prompt_scores is not None:
                sequence.num_scored += len(result.prompt_scores.ranks)
            if result.hidden is not None:
                sequence.pooled = result.hidden if sequence.pooled is None else sequence.pooled + result.hidden
                sequence.num_pooled += result.num_pooled
            self.driver.commit(sequence)
            self._wake_siblings(sequence)
            self.choosing.advance(sequence, result.token_ids)

    def emit(self, step: Submitted, results: list[Outcome]) -> None:
        """Say what is new, and end what has ended."""
        now = self.parts.clock()
        for result in results:
            sequence = result.sequence
            if len(result.token_ids):
                if math.isnan(sequence.timing.first_token):
                    sequence.timing.first_token = now
                self._record("token", sequence, count=len(result.token_ids))
            if sequence.is_aborted:
                self._finish(sequence, "abort")
            elif result.reason is not None:
                self._finish(sequence, result.reason, result.error, result)
            elif len(result.token_ids) or result.prompt_scores is not None:
                self.emissions.append(emission_of(sequence, result))
        self.choosing.commit(step.chosen, results)
        seconds = now - step.started
        self.step_seconds += seconds
        if self.parts.sinks:
            self.events.append(Event("step", now, values={"rows": len(results), "seconds": seconds}))

    def publish(self) -> None:
        """Feed the step's events to whoever observes."""
        events, self.events = tuple(self.events), []
        for sink in self.parts.sinks:
            sink.value.on_events(events)

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(
        self,
        request: str,
        prompt: IntArray,
        params: SamplingParams,
        *,
        tenant: str = "",
        priority: int = 0,
        pooling: Pooling = "",
        hold: str | None = None,
    ) -> None:
        """Queue a request of `params.n` sequences; `hold` keeps it from running until that ticket completes.

        prompt: `[P]` token ids; pooling: make one vector of them instead of going on with them. Raises RequestError,
        with the numbers, for what can never run.
        """
        self.check(prompt, params)
        if request in self.requests.by_request:
            raise RequestError(f"request id {request!r} is already in use: give every request its own")
        sequences = new_sequences(
            request,
            prompt,
            params,
            rows=[self.requests.new_row() for _ in range(params.n)],
            num_groups=self.parts.num_groups,
            now=self.parts.clock(),
            seed=params.seed if params.seed is not None else zlib.crc32(request.encode()) ^ self.parts.seed,
            eos_ids=self.parts.eos_ids,
            tenant=tenant if self.driver.separates_tenants else "",
            model=self.parts.model,
            priority=priority,
            pooling=pooling,
        )
        self.choosing.add(sequences)
        for sequence in sequences:
            ticket = fork_ticket(sequences[0].row) if sequence.child and self.driver.can_fork else None
            self.requests.add(sequence, ticket or hold)
            self._record("queued", sequence)

    def check(self, prompt: IntArray, params: SamplingParams) -> None:
        """Raise RequestError, with the numbers, for a request that can never run here, and PluginFault."""
        check_request(prompt, params, self.parts.limits, self.parts.kv, self.parts.vocab_size)
        if params.structure is not None:
            self.choosing.check(params.structure)

    def abort(self, request: str, child: int | None = None) -> None:
        """End a request, or one of its outputs, wherever it is; an unknown or finished one is ignored."""
        for sequence in list(self.requests.by_request.get(request, {}).values()):
            if child not in (None, sequence.child) or not sequence.is_alive:
                continue
            if sequence.num_in_flight:
                sequence.is_aborted = True
            elif fault := self._end(sequence, "abort"):
                self._check_books(fault)

    def preempt_all(self) -> int:
        """Take all KV from every running row; they start again in the same order. Returns how many there were."""
        running = [sequence for sequence in self.requests.running.values() if not sequence.num_in_flight]
        for sequence in reversed(running):
            self.driver.preempt(sequence)
        return len(running)

    def complete(self, ticket: str) -> None:
        """What was held for `ticket` may run. From any thread; an unknown ticket is ignored."""
        self.requests.complete(ticket)
        self.wake.set()

    @property
    def has_work(self) -> bool:
        return bool(len(self.requests) or self.in_flight or self.emissions)

    @property
    def is_waiting_for_tickets(self) -> bool:
        """Everything alive is held: the next step does nothing until `complete` is called."""
        requests = self.requests
        can_move = requests.running or requests.waiting or requests.has_completed or self.in_flight
        return bool(requests.held) and not can_move

    def count_free_blocks(self) -> int:
        """KV blocks that are free between two steps; an allocator that cannot say fails the rows of the last one."""
        try:
            return self.driver.allocator.value.num_free()
        except Exception as error:
            self.fail(error)
            return 0

    def audit(self) -> list[str]:
        """Everything that is lost, held twice or held by the dead; empty when all is well."""
        return audit_engine(self.requests, self.driver.allocator.value, self.choosing.sampler)

    # -- failure ----------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """A stage raised: the rows of the step fail with the reason, the rest goes on if the books still balance."""
        text = self._named(error)
        self.events.clear()
        for sequence in self.at_risk:
            if sequence.is_alive:
                sequence.num_in_flight = 0
                self._end(sequence, "error", text)
        self._check_books(text)

    def _named(self, error: Exception) -> str:
        """Log an error and say whose it is."""
        fault = self.parts.registry.blame(error) or error
        text = str(fault) if isinstance(fault, PluginFault) else f"the engine failed: {type(error).__name__}: {error}"
        logger.error("%s", text, exc_info=error)
        return text

    def _end(self, sequence: Sequence, reason: FinishReason, error: str = "") -> str:
        """Finish a sequence where no step can fail for it. What a plugin raised meanwhile, or nothing."""
        try:
            self._finish(sequence, reason, error)
        except Exception as broken:
            return self._named(broken)
        return ""

    def _check_books(self, text: str) -> None:
        """Go on after what `text` tells if the books balance, else start again."""
        try:
            problems = self.audit()
        except Exception as broken:
            problems = [f"audit raised {type(broken).__name__}: {broken}"]
        if problems:
            self._restart(f"{text}; and the KV books do not balance ({problems[0]}), so the engine was restarted")

    def _restart(self, text: str) -> None:
        """Every request fails, and the books start empty."""
        logger.error("%s", text)
        self.num_restarts += 1
        doomed = list(self.requests)
        while self.in_flight:
            # for nobody, but steps come back in order
            with suppress(Exception):
                self.executor.collect(self.in_flight.popleft().ticket)
        self._reset()
        for sequence in doomed:
            self._end(sequence, "error", text)

    def _fail_stalled(self, sequence: Sequence) -> None:
        self.num_stalled = 0
        kv = self.parts.kv
        text = (
            f"no KV can be had for {sequence.num_tokens} tokens although nothing else runs: the pool has "
            f"{self.driver.allocator.value.num_free()} of {kv.num_blocks} blocks of {kv.block_size} tokens free"
        )
        self._finish(sequence, "error", text)

    # -- parts of the step ------------------------------------------------------------------------------------------

    def _grow(self, wishes: list[Chosen], plan: Plan) -> tuple[list[Chosen], list[BlockCopy]]:
        self.at_risk = [wish.sequence for wish in wishes]
        return self.driver.grow(wishes, plan)

    def _wake_siblings(self, parent: Sequence) -> None:
        """Once the prompt is computed, its held siblings share it; those that cannot compute it themselves."""
        if not self.requests.held or parent.num_computed < parent.num_prompt:
            return
        ticket = fork_ticket(parent.row)
        if ticket not in self.requests.held:
            return
        siblings = list(self.requests.held[ticket].values())
        self.requests.complete(ticket)
        self.requests.wake_completed()
        for sibling in siblings:
            self.driver.fork(parent, sibling)

    def _on_preempt(self, sequence: Sequence) -> None:
        # until its KV is given back, what fails leaves it in doubt
        self.at_risk.append(sequence)
        self._record("preempted", sequence, tokens=sequence.num_tokens)
        self.choosing.drop_drafts(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str = "", result: Outcome | None = None) -> None:
        """The one way out: its end is said once, and all it holds is given back, whoever raises on the way."""
        sequence.timing.finished = self.parts.clock()
        self.emissions.append(emission_of(sequence, result, reason, error))
        self._record(EVENT_OF[reason], sequence)
        # siblings that wait for its prompt compute it themselves
        self.requests.complete(fork_ticket(sequence.row))
        self.requests.remove(sequence)
        with ExitStack() as everybody:
            everybody.callback(self.driver.release, sequence)
            self.choosing.remove(sequence, everybody)

    def _record(self, kind: EventKind, sequence: Sequence, **values: float) -> None:
        if self.parts.sinks:
            self.events.append(Event(kind, self.parts.clock(), sequence.row, values))


EventKind = Literal["queued", "admitted", "preempted", "token", "finished", "aborted", "failed", "step"]
EVENT_OF: Mapping[FinishReason, EventKind] = {
    "stop": "finished",
    "length": "finished",
    "abort": "aborted",
    "error": "failed",
}


def fork_ticket(row: int) -> str:
    return f"fork {row}"
