"""A workload on replicas of an engine in virtual time: the engine's own objects, a cost model instead of a model.

What happens next is always the earliest of two things: a step ends, or a request is due. Nothing is drawn at random, so
that the same config, workload and cost model give the same run to the last bit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..config import Config
from ..engine.emission import Emission
from ..errors import ConfigError
from ..gateway.routing import Routing
from ..records import NO_ROWS, Event, IngressRequest, IntArray
from ..sampling_params import SamplingParams
from .agenda import Due, whole_lengths
from .bench_run import OnServed, Run
from .cost_model import CostModel
from .costed_executor import VOCAB_SIZE
from .in_process import check_lengths
from .ledger import Ledger, failed
from .metrics import summarise
from .objective import Objective
from .prompt_ids import id_range
from .replicas import Entering, Replicas, make_replicas
from .served import Served
from .synthetic import Shape, shape_at_hand, shape_of_tokens
from .workload import ALONE, Ask, Workload


@dataclass(frozen=True, slots=True)
class SimulatedRun(Run):
    """A run, and what only a simulation can tell."""

    num_steps: int = 0
    """Of all replicas."""
    num_requests: tuple[int, ...] = ()
    """That were routed to each replica."""

    def metrics(self, objective: Objective | None = None, price_per_hour: float | None = None) -> dict[str, float]:
        """By name, see `metrics.METRICS`. price_per_hour: of all replicas together."""
        return summarise(self.served, self.seconds, self.extras, objective, price_per_hour)


def simulate(
    config: Config,
    workload: Workload,
    cost_model: CostModel,
    *,
    num_replicas: int = 1,
    kv_tokens: int | None = None,
    classes: Sequence[type] = (),
    on_served: OnServed | None = None,
) -> SimulatedRun:
    """Serve the workload in virtual time, greedy, every output as long as its request says.

    kv_tokens: size of each replica's KV pool, of a model that is not at hand; None takes the config's model and
    kv_bytes. classes: plugins that are not installed. on_served: told of each request when it has ended.

    Raises ConfigError, ModelError or PluginError before anything runs, and PluginFault for a router that fails.
    """
    shape = shape_for(config, workload, cost_model, kv_tokens, classes)
    replicas = make_replicas(shape, cost_model, num_replicas, classes)
    return Simulation(replicas, workload, on_served).run()


def shape_for(
    config: Config, workload: Workload, cost_model: CostModel, kv_tokens: int | None, classes: Sequence[type] = ()
) -> Shape:
    """The model of a simulation, see `simulate`."""
    if kv_tokens is None:
        return shape_at_hand(config, classes)
    return shape_of_tokens(config, cost_model.name, kv_tokens, max(2, *whole_lengths(workload)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch samples a few rows at a time here: further threads would only wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True)
class Inside:
    """A request that a replica has."""

    due: Due
    sent: float
    num_prompt: int
    replica: int
    token_times: list[float] = field(default_factory=list)


class Simulation:
    """One run. Every time is in seconds after its start."""

    def __init__(self, replicas: Replicas, workload: Workload, on_served: OnServed | None = None) -> None:
        self.replicas = replicas.all
        self.plan = replicas.plan
        self.encode_text = replicas.shape.encode
        self.workload = workload
        self.model = replicas.shape.config.model.name
        self.routing = Routing(replicas.gateway, replicas.gateway.every("route", model=replicas.shape.spec))
        self.ids = id_range(VOCAB_SIZE)
        self.ledger = Ledger(workload, on_served)
        self.agenda = self.ledger.agenda
        self.ends: list[tuple[float, int]] = []
        """When each step that runs ends, and whose it is."""
        self.inside: dict[str, Inside] = {}
        self.said: dict[int, IntArray] = {}
        """Per conversation, its tokens so far."""
        self.num_requests = [0] * len(self.replicas)

    def run(self) -> SimulatedRun:
        check_lengths(self.workload, self.plan.max_model_len)
        if self.encode_text is None and any(ask.text for ask in self.workload.asks):
            raise ConfigError("a prompt of text has no known length without the model's tokenizer: name the model")
        with one_thread():
            self.run_all()
        engines = [replica.engine for replica in self.replicas]
        return SimulatedRun(
            served=self.ledger.served,
            seconds=self.ledger.seconds,
            extras=self.extras(),
            plan_hash=self.plan.hash,
            environment=self.plan.environment,
            num_steps=sum(engine.num_steps for engine in engines),
            num_requests=tuple(self.num_requests),
        )

    def run_all(self) -> None:
        """From moment to moment until every request has ended."""
        while not self.agenda.is_over:
            now = self.next_moment()
            while self.ends and self.ends[0][0] <= now:
                self.end_step(heapq.heappop(self.ends)[1], now)
            for due in self.agenda.take(now):
                self.send(due, now)
            for number, replica in enumerate(self.replicas):
                if replica.can_step:
                    heapq.heappush(self.ends, (replica.step(now), number))

    def next_moment(self) -> float:
        """When the next thing happens."""
        due = self.agenda.next_due
        assert self.ends or due is not None, "a request that is inside runs, and one that is not is due"
        return min(self.ends[0][0] if self.ends else math.inf, math.inf if due is None else due)

    def extras(self) -> dict[str, float]:
        """What the engines tell beside their answers, by the names of `metrics.EXTRAS`."""
        engines = [replica.engine for replica in self.replicas]
        found: dict[str, float] = {"preemptions": sum(engine.driver.num_preempted for engine in engines)}
        if num_steps := sum(engine.num_steps for engine in engines):
            found["batch_size"] = sum(engine.step_rows for engine in engines) / num_steps
        if seconds := sum(replica.seconds for replica in self.replicas):
            found["kv_residency"] = sum(replica.used_seconds for replica in self.replicas) / seconds
        return found

    # -- one request ------------------------------------------------------------------------------------------------

    def send(self, due: Due, now: float) -> None:
        """Route a request and hand it to its replica."""
        ask = self.workload.asks[due.index]
        request = str(due.index)
        prompt = self.prompt_of(ask)
        number = self.route(request, prompt)
        self.num_requests[number] += 1
        self.inside[request] = Inside(due, now, len(prompt), number)
        self.tell_routers("queued", due.index, number, now)
        params = SamplingParams(max_tokens=ask.num_output, ignore_eos=True, temperature=0.0)
        if reason := self.replicas[number].enter(Entering(request, prompt, params), now):
            self.refuse(request, reason, now)

    def route(self, request: str, prompt: IntArray) -> int:
        """The number of the replica that it goes to."""
        if len(self.replicas) == 1 and not self.routing.routers:
            return 0
        asked = IngressRequest(id=request, prompt=tuple(prompt.tolist()), model=self.model)
        pools = tuple(replica.view() for replica in self.replicas)
        pool = self.routing.pick(asked, pools).pool
        return next(number for number, view in enumerate(pools) if view.name == pool)

    def prompt_of(self, ask: Ask) -> IntArray:
        """All that was said in its conversation, and its own."""
        if ask.text:
            assert self.encode_text is not None, "it was checked"
            own = self.encode_text(ask.text)
        else:
            own = ask.token_ids(self.ids.first, self.ids.end)
        if ask.conversation == ALONE:
            return own
        said = np.concatenate([self.said.get(ask.conversation, NO_ROWS), own])
        self.said[ask.conversation] = said
        return said

    def end_step(self, number: int, now: float) -> None:
        emissions, refused = self.replicas[number].end_step()
        for emission in emissions:
            inside = self.inside[emission.request]
            inside.token_times += [now] * len(emission.token_ids)
            if emission.finish_reason is not None:
                self.finish(emission, inside, now)
        for entering, reason in refused:
            self.refuse(entering.request, reason, now)

    def finish(self, emission: Emission, inside: Inside, now: float) -> None:
        del self.inside[emission.request]
        self.tell_routers("failed" if emission.error else "finished", inside.due.index, inside.replica, now)
        timing = emission.timing
        assert timing is not None, "it comes with the reason"
        self.enter(
            Served(
                index=inside.due.index,
                due=inside.due.time,
                sent=inside.sent,
                token_times=tuple(inside.token_times),
                finished=now,
                num_prompt=inside.num_prompt,
                num_output=len(inside.token_times),
                num_cached=emission.num_cached,
                queue_wait=timing.scheduled - timing.arrival,
                finish_reason=emission.finish_reason or "",
                error=emission.error,
            )
        )

    def refuse(self, request: str, reason: str, now: float) -> None:
        inside = self.inside.pop(request)
        self.tell_routers("failed", inside.due.index, inside.replica, now)
        self.enter(failed(inside.due, inside.sent, reason, now))

    def enter(self, served: Served) -> None:
        """A request has ended, well or not."""
        self.ledger.enter(served)
        if served.error:
            self.ledger.fail(served.index, served.finished)
            return
        conversation = self.workload.asks[served.index].conversation
        if conversation != ALONE:
            # the answer, of which a simulation knows the length only
            answer = np.zeros(served.num_output, dtype=np.int64)
            self.said[conversation] = np.concatenate([self.said[conversation], answer])
        self.agenda.answer(served.index, served.finished)

    def tell_routers(self, kind: str, index: int, replica: int, now: float) -> None:
        """The event of a request, whose `row` is its number in the workload, with the number of its pool."""
        if self.routing.routers:
            self.routing.observe(Event(kind, now, row=index, values={"pool": replica}))  # type: ignore[arg-type]
