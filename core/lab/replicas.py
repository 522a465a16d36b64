"""Replicas of one engine in virtual time, each with a clock of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from .. import VERSION
from ..config import Config, PluginEntry
from ..defaults import make_registry
from ..engine.assemble import Assembled, assemble
from ..engine.emission import Emission
from ..engine.engine import Engine
from ..errors import ConfigError, SwitchgearError
from ..model.shape_only import no_reader
from ..plan import EffectivePlan, effective_plan
from ..recipes import REPLAYING
from ..records import IntArray, PoolView
from ..registry import Registry
from ..sampling_params import SamplingParams
from .cost_model import CostModel
from .costed_executor import NAME, costed_execution
from .synthetic import Shape
from .virtual_clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Entering:
    """A request on its way into an engine."""

    request: str
    prompt: IntArray
    """`[P]`"""
    params: SamplingParams


class Replica:
    """One engine. It is stepped from outside, and takes requests in between two steps, as every engine does."""

    def __init__(self, name: str, engine: Engine, clock: VirtualClock) -> None:
        self.name = name
        self.engine = engine
        self.clock = clock
        self.entering: list[Entering] = []
        """Came while a step ran."""
        self.emissions: list[Emission] | None = None
        """What the step that runs will say at its end, `clock.now`; None between two steps."""
        self._num_leaving = 0
        """Sequences that end with the step that runs, and until then are seen to run."""
        self.num_blocks = engine.parts.kv.num_blocks
        self.seconds = self.used_seconds = 0.0
        """Time in steps, and the same times the share of the KV pool that was in use."""

    @property
    def can_step(self) -> bool:
        """It stands between two steps and has something to do."""
        return self.emissions is None and self.engine.has_work

    def view(self) -> PoolView:
        """As a router sees it now."""
        requests = self.engine.requests
        return PoolView(
            name=self.name,
            is_local=True,
            num_running=len(requests.running) + self._num_leaving,
            num_waiting=len(requests) - len(requests.running) + len(self.entering),
            kv_usage=self.kv_usage(),
        )

    def kv_usage(self) -> float:
        return 1 - self.engine.count_free_blocks() / self.num_blocks

    def enter(self, entering: Entering, now: float) -> str:
        """Take a request, now or after the step that runs. Why it was refused, or nothing."""
        if self.emissions is not None:
            self.entering.append(entering)
            return ""
        self.clock.jump(max(now, self.clock.now))
        return self._add(entering)

    def _add(self, entering: Entering) -> str:
        try:
            self.engine.add(entering.request, entering.prompt, entering.params)
        except SwitchgearError as error:
            return str(error)
        return ""

    def step(self, now: float) -> float:
        """Run one step that begins now. Returns when it ends."""
        if self.engine.is_waiting_for_tickets:
            raise ConfigError(f"{self.name} has only requests that wait for what nobody completes in virtual time")
        self.clock.jump(now)
        self.emissions = self.engine.step()
        self._num_leaving = sum(emission.finish_reason is not None for emission in self.emissions)
        seconds = self.clock.now - now
        self.seconds += seconds
        self.used_seconds += seconds * self.kv_usage()
        return self.clock.now

    def end_step(self) -> tuple[list[Emission], list[tuple[Entering, str]]]:
        """What the step says, and who came meanwhile and was refused, with the reason."""
        assert self.emissions is not None, "no step runs"
        emissions, self.emissions = self.emissions, None
        self._num_leaving = 0
        entering, self.entering = self.entering, []
        refused = [(each, reason) for each in entering if (reason := self._add(each))]
        return emissions, refused


@dataclass(frozen=True, slots=True)
class Replicas:
    """Equal replicas, the gateway's own registry, and the plan that all of them have."""

    all: tuple[Replica, ...]
    gateway: Registry
    plan: EffectivePlan
    shape: Shape


def make_replicas(shape: Shape, cost_model: CostModel, count: int, classes: Sequence[type] = ()) -> Replicas:
    """Engines of the shape's config in which only the model is missing. classes: plugins that are not installed.

    Raises ConfigError or PluginError for what cannot be simulated.
    """
    if count < 1:
        raise ConfigError(f"{count} replicas serve nobody: it takes at least one")
    config = with_cost_model(shape.config, cost_model)
    replicas: list[Replica] = []
    plan: EffectivePlan | None = None
    for number in range(count):
        clock = VirtualClock()
        registry = make_registry(config, (costed_execution(cost_model, clock), *classes))
        parts = assemble(config, registry, shape.spec, no_reader, shape.device, clock=clock)
        refuse_what_has_no_effect(registry, shape, parts)
        registry.leave("route")
        registry.every("control", engine=parts.engine)
        plan = plan or plan_of(config, shape, parts)
        parts.engine.start()
        replicas.append(Replica(f"replica {number}", parts.engine, clock))
    assert plan is not None
    gateway = make_registry(config, (costed_execution(cost_model, VirtualClock()), *classes))
    return Replicas(tuple(replicas), gateway, plan, shape)


def with_cost_model(config: Config, cost_model: CostModel) -> Config:
    """The config with the costed executor, whose options make the plan's hash cover the numbers."""
    table = cost_model.to_json()
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
    options = {"cost_model": cost_model.name, "source": cost_model.source, "digest": digest}
    optional = config.optional | REPLAYING
    return msgspec.structs.replace(config, plugins=(PluginEntry(NAME, options), *config.plugins), optional=optional)


def refuse_what_has_no_effect(registry: Registry, shape: Shape, parts: Assembled) -> None:
    """Nothing that is on is left out silently."""
    if parts.engine.parts.proposer is not None:
        raise ConfigError(
            f"plugin {parts.engine.parts.proposer.plugin!r} drafts tokens, and a simulation has no model that accepts "
            "them: switch it off"
        )
    stages = registry.every("on_ingress", model=shape.spec)
    if stages:
        raise ConfigError(
            f"plugin {stages[0].plugin!r} works before requests reach an engine, where a simulation begins: "
            "switch it off"
        )


def plan_of(config: Config, shape: Shape, parts: Assembled) -> EffectivePlan:
    return effective_plan(
        config,
        parts.registry,
        version=VERSION,
        architecture=shape.spec.architecture,
        dtype_reason=shape.dtype_reason,
        device=parts.device,
        limits=parts.limits,
        kv=parts.kv,
        kv_spec=parts.kv_spec,
    )
