"""A workload on an engine in this process: requests enter between its steps as they become due. No threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..errors import ConfigError, SwitchgearError
from ..gateway.live import LiveRequest
from ..gateway.llm import LLM, Encoded
from ..gateway.prompts import Message
from ..sampling_params import SamplingParams
from .agenda import Due, whole_lengths
from .bench_run import OnServed, Run, ShouldStop, never
from .engine_watch import EngineWatch
from .ledger import Ledger, failed
from .prompt_ids import id_range
from .served import Served
from .workload import ALONE, Ask, Workload
from .workloads import warm_up_workload

LONGEST_WAIT = 0.1
"""Seconds after which a run that waits looks whether it should stop."""


def run_in_process(
    llm: LLM,
    workload: Workload,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
    on_served: OnServed | None = None,
    should_stop: ShouldStop = never,
) -> Run:
    """Serve the workload and note when what came, greedy.

    clock, wait: another time than the real one, in seconds. on_served: told of each request when it has ended.
    should_stop: asked between steps. Raises ConfigError for requests that are longer than the engine takes, before
    anything runs.
    """
    return InProcess(llm, workload, clock, wait, on_served, should_stop).run()


def warm_up(llm: LLM) -> None:
    """Two short requests whose tokens no workload has: what is made at first use is made."""
    run_in_process(llm, warm_up_workload(llm.plan.max_model_len))


@dataclass(slots=True)
class Inside:
    """A request that the engine has."""

    due: Due
    sent: float
    live: LiveRequest
    token_times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Said:
    """A conversation so far."""

    token_ids: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class InProcess:
    """One run. Times in it are seconds after its start."""

    def __init__(
        self,
        llm: LLM,
        workload: Workload,
        clock: Callable[[], float],
        wait: Callable[[float], None],
        on_served: OnServed | None,
        should_stop: ShouldStop,
    ) -> None:
        self.llm = llm
        self.engine = llm._engine
        self.workload = workload
        self.clock, self.wait = clock, wait
        self.should_stop = should_stop
        self.ids = id_range(self.engine.parts.vocab_size)
        self.ledger = Ledger(workload, on_served)
        self.agenda = self.ledger.agenda
        self.said: dict[int, Said] = {}
        self.inside: dict[int, Inside] = {}
        """By index of the request."""
        self.start = math.nan
        self.engine_cpu_seconds = 0.0
        """Of this thread, in steps."""

    def now(self) -> float:
        return self.clock() - self.start

    def run(self) -> Run:
        check_lengths(self.workload, self.llm.plan.max_model_len)
        check_conversations(self.workload, self.llm.has_chat_template)
        watch = EngineWatch(self.llm)
        cpu_start = time.thread_time()
        self.start = self.clock()
        try:
            while not self.agenda.is_over and not self.should_stop():
                for due in self.agenda.take(self.now()):
                    self.send(due)
                if self.engine.has_work:
                    self.step(watch)
                else:
                    self.wait_for_arrival()
        finally:
            for inside in self.inside.values():
                self.llm._leave(inside.live)
        cpu_seconds = time.thread_time() - cpu_start - self.engine_cpu_seconds
        plan = self.llm.plan
        return Run(
            served=self.ledger.served,
            seconds=self.ledger.seconds,
            extras=watch.extras(),
            plan_hash=plan.hash,
            environment=plan.environment,
            client_cpu_seconds=cpu_seconds,
            is_whole=self.agenda.is_over,
        )

    def wait_for_arrival(self) -> None:
        if (next_due := self.agenda.next_due) is not None and (seconds := next_due - self.now()) > 0:
            self.wait(min(seconds, LONGEST_WAIT))

    def step(self, watch: EngineWatch) -> None:
        """One step for everybody."""
        if self.engine.is_waiting_for_tickets:
            # not longer than until somebody else may come in
            next_due = self.agenda.next_due
            seconds = LONGEST_WAIT if next_due is None else min(LONGEST_WAIT, max(0.0, next_due - self.now()))
            if not self.engine.wake.wait(seconds):
                return
        before = time.thread_time()
        self.llm._pump()
        self.engine_cpu_seconds += time.thread_time() - before
        watch.look()
        now = self.now()
        for inside in list(self.inside.values()):
            self.collect(inside, now)

    # -- one request ------------------------------------------------------------------------------------------------

    def send(self, due: Due) -> None:
        ask = self.workload.asks[due.index]
        sent = self.now()
        params = SamplingParams(max_tokens=ask.num_output, ignore_eos=ask.ignore_eos, temperature=0.0)
        try:
            live = self.llm._submit(*self.encode(ask), params)
        except SwitchgearError as error:
            self.enter(failed(due, sent, str(error), self.now()))
            return
        self.inside[due.index] = Inside(due, sent, live)
        # a stage may have answered it already
        self.collect(self.inside[due.index], self.now())

    def encode(self, ask: Ask) -> Encoded:
        """The request's prompt: all that was said in its conversation, and its own."""
        said = self.said.setdefault(ask.conversation, Said()) if ask.conversation != ALONE else Said()
        if ask.text and ask.conversation == ALONE:
            return self.llm._encode(ask.text)
        if ask.text:
            said.messages.append({"role": "user", "content": ask.text})
            return self.llm._encode_chat(list(said.messages))
        said.token_ids += ask.token_ids(self.ids.first, self.ids.end).tolist()
        token_ids = np.array(said.token_ids, dtype=np.int64)
        return token_ids, tuple(said.token_ids), ()

    def collect(self, inside: Inside, now: float) -> None:
        """Note what has come for a request, and its end."""
        live = inside.live
        while live.chunks:
            inside.token_times += [now] * len(live.chunks.popleft().token_ids)
        if not live.is_done:
            return
        del self.inside[inside.due.index]
        self.llm._leave(live)
        result = live.result()
        self.enter(
            Served(
                index=inside.due.index,
                due=inside.due.time,
                sent=inside.sent,
                token_times=tuple(inside.token_times),
                finished=now,
                num_prompt=len(result.prompt_token_ids),
                num_output=len(result.token_ids),
                num_cached=result.num_cached_tokens,
                queue_wait=result.timing.queue,
                token_ids=result.token_ids,
                text=result.text,
                finish_reason=result.finish_reason,
                error=result.error,
            )
        )

    def enter(self, served: Served) -> None:
        """A request has ended, well or not."""
        self.ledger.enter(served)
        if served.error:
            self.ledger.fail(served.index, served.finished)
            return
        ask = self.workload.asks[served.index]
        if ask.conversation != ALONE:
            said = self.said[ask.conversation]
            said.token_ids += served.token_ids
            said.messages.append({"role": "assistant", "content": served.text})
        self.agenda.answer(served.index, served.finished)


def check_lengths(workload: Workload, max_model_len: int) -> None:
    """Raise ConfigError if a request of token ids, with what is said before it, is longer than the engine takes."""
    lengths = whole_lengths(workload)
    num_longer = sum(length > max_model_len for length in lengths)
    if num_longer:
        raise ConfigError(
            f"{num_longer} of {len(workload.asks)} requests are longer than the {max_model_len} tokens of [engine] "
            f"max_model_len, the longest has {max(lengths)}: raise it, or make the lengths smaller"
        )


def check_conversations(workload: Workload, has_chat_template: bool) -> None:
    """Raise ConfigError for conversations of text where the model has no way to read them."""
    if not has_chat_template and any(ask.text and ask.conversation != ALONE for ask in workload.asks):
        raise ConfigError("this model has no chat template, so it cannot be measured with conversations of text")
