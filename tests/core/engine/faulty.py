"""Plugins that do what the defaults do, until one call of one method raises: `Trap.arm(2)` is for the second call.

One class a hook, all named "faulty". They live in a module of their own, as a third party's would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from switchgear.core.config import PluginConfig
from switchgear.core.defaults import GatheredAttention, PlainLinears, StaticBatching, StoredAsComputed
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Executor, KVCodec, Linear
from switchgear.core.records import (
    TOKEN_EQUAL,
    BoolArray,
    Continue,
    Device,
    Draft,
    DraftView,
    Event,
    IngressRequest,
    IntArray,
    KVSpec,
    LayerSpec,
    Limits,
    LinearSpec,
    Outcome,
    Plan,
    StepView,
)

from .paged import PagedBlocks
from .prefix import CachedBlocks


class Boom(RuntimeError):
    """What a trap raises."""


class Trap:
    """Counts calls, and raises in one of each method that it was armed for."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.calls_left: dict[str, int] = {}

    def arm(self, method: str, call: int) -> None:
        self.calls_left[method] = call

    @property
    def has_sprung(self) -> bool:
        return not any(self.calls_left.values())

    def pass_by(self, method: str) -> None:
        self.counts[method] += 1
        if self.calls_left.get(method):
            self.calls_left[method] -= 1
            if not self.calls_left[method]:
                raise Boom("as armed")


def trapped(inner: object, trap: Trap) -> Any:
    """An object with every public attribute of `inner`, whose methods pass by the trap first."""

    def guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            trap.pass_by(name)
            return method(*arguments, **named)

        # a traceback has the code's name
        call.__code__ = call.__code__.replace(co_name=name)
        return call

    twin = type("Trapped", (), {})()
    for name in dir(inner):
        value = getattr(inner, name)
        if not name.startswith("_"):
            setattr(twin, name, guarded(name, value) if callable(value) else value)
    return twin


class Faulty:
    """Base of the plugins here."""

    name = "faulty"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.trap = Trap()


class FaultyPolicy(Faulty):
    """Static batching that may fail."""

    @hookimpl
    def schedule_step(self) -> Any:
        return trapped(StaticBatching(), self.trap)


class FaultyModifier(Faulty):
    """A modifier that changes nothing and may fail."""

    @hookimpl
    def schedule_step(self) -> FaultyModifier:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        self.trap.pass_by("revise")
        return plan


class FaultyAllocator(Faulty):
    """Paged blocks that may fail."""

    def kv_block_size(self, limits: Limits) -> int:
        return 4

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> Any:
        return trapped(PagedBlocks(len(spec), block_size, num_blocks), self.trap)


class FaultyLateAllocator(FaultyAllocator):
    """Paged blocks that may fail after the deed is done."""

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> Any:
        blocks = PagedBlocks(len(spec), block_size, num_blocks)
        release = blocks.release

        def release_then_raise(row: int) -> None:
            release(row)
            self.trap.pass_by("late release")

        blocks.release = release_then_raise  # type: ignore[method-assign]
        return blocks


class FaultyPrefixCache(Faulty):
    """A prefix cache that may fail."""

    @hookimpl
    def allocate_kv(self, inner: PagedBlocks) -> Any:
        return trapped(CachedBlocks(inner), self.trap)


class FaultyProposer(Faulty):
    """Drafts each row's last token again, and may fail."""

    @hookimpl
    def propose_tokens(self) -> FaultyProposer:
        return self

    @hookimpl
    def schedule_step(self) -> FaultyProposer:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        return replace(plan, num_drafts=np.ones(len(plan.order), dtype=np.int64))

    def propose(self, view: DraftView, num_drafts: IntArray) -> Draft:
        self.trap.pass_by("propose")
        return Draft(np.array([[tokens[-1]] for tokens in view.tokens], dtype=np.int64), num_drafts)

    def commit(self, rows: IntArray, num_accepted: IntArray) -> None:
        self.trap.pass_by("commit")

    def drop(self, rows: IntArray) -> None:
        self.trap.pass_by("drop")


class FaultyExecutor(Faulty):
    """Runs steps through the executor it wraps, and may fail."""

    @hookimpl
    def execute(self, inner: Executor) -> Any:
        return trapped(inner, self.trap)


class FaultyLogits(Faulty):
    """Allows every token, and may fail."""

    @hookimpl
    def logits(self) -> FaultyLogits:
        return self

    def mask(self, rows: IntArray, drafts: tuple[IntArray, ...], offsets: IntArray) -> BoolArray | None:
        self.trap.pass_by("mask")
        return None

    def advance(self, row: int, tokens: tuple[int, ...]) -> None:
        self.trap.pass_by("advance")

    def drop(self, rows: IntArray) -> None:
        self.trap.pass_by("drop")


class FaultyAttention(Faulty):
    """The default attention, which may fail."""

    @hookimpl
    def attention_impl(self, layer: LayerSpec, codec: KVCodec) -> Any:
        return trapped(GatheredAttention(layer, codec), self.trap)


class FaultyLinears(Faulty):
    """Plain linears that may fail."""

    def __init__(self, config: Faulty.Config) -> None:
        super().__init__(config)
        self.plain = PlainLinears()

    @hookimpl
    def quantize(self, spec: LinearSpec, device: Device) -> Any:
        return trapped(self.plain.quantize(spec, device), self.trap)


class FaultyWrappedLinears(Faulty):
    """Linears with something around them that may fail."""

    @hookimpl
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Linear:
        def around(x: Any) -> Any:
            self.trap.pass_by("around")
            return linear(x)

        return around


class FaultyCodec(Faulty):
    """KV stored as computed, which may fail."""

    @hookimpl
    def kv_codec(self, device: Device) -> Any:
        return trapped(StoredAsComputed(device.dtype), self.trap)


class FaultyOps(Faulty):
    """The plain operations, which may fail."""

    @hookimpl
    def fused_ops(self, op: str) -> Callable[..., Any]:
        from switchgear.core.model import ops

        def operation(*arguments: Any) -> Any:
            self.trap.pass_by(op)
            return getattr(ops, op)(*arguments)

        return operation


class FaultySink(Faulty):
    """Hears events, and may fail."""

    @hookimpl
    def observe(self) -> FaultySink:
        return self

    def on_events(self, events: tuple[Event, ...]) -> None:
        self.trap.pass_by("on_events")


class FaultyStage(Faulty):
    """Lets every request through, and may fail."""

    @hookimpl
    def on_ingress(self) -> FaultyStage:
        return self

    async def enter(self, request: IngressRequest) -> Continue:
        self.trap.pass_by("enter")
        return Continue()

    def leave(self, request: IngressRequest, outcome: Outcome) -> None:
        self.trap.pass_by("leave")


class FaultyControl(Faulty):
    """One command and no counters, and may fail."""

    @hookimpl
    def control(self) -> FaultyControl:
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        self.trap.pass_by("commands")
        return {"double": self.double}

    def double(self, number: int) -> int:
        self.trap.pass_by("double")
        return 2 * number

    def stats(self) -> Mapping[str, float]:
        self.trap.pass_by("stats")
        return {}
