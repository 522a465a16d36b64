"""Plugins with a fault that only some requests see, and a runner in this process that takes them as classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from switchgear.core.config import Config, PluginConfig
from switchgear.core.defaults import GatheredAttention, Tile
from switchgear.core.errors import PluginError, SwitchgearError
from switchgear.core.gateway.llm import LLM
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import KVAllocator, KVCodec, Policy
from switchgear.core.lab.arm_process import measured_of
from switchgear.core.lab.equality import Said, Verdict, check
from switchgear.core.lab.in_process import run_in_process
from switchgear.core.lab.measured import Measured
from switchgear.core.lab.workload import Workload
from switchgear.core.records import TOKEN_EQUAL, Batch, Device, Hit, IntArray, KVSpec, LayerSpec, Plan, StepView
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.prefix_cache import CachedPool, PrefixCache


class Starving(ContinuousBatching):
    """Lets who waits with a long prompt wait for as long as anybody else is there."""

    name = "starving"

    @hookimpl
    def schedule_step(self) -> Policy:
        return self

    def plan(self, view: StepView) -> Plan:
        plan = super().plan(view)
        is_short = plan.num_tokens <= 32
        chosen = is_short | np.isin(plan.order, view.rows[: view.num_running])
        if not chosen.any():
            return plan
        return Plan(plan.order[chosen], plan.num_tokens[chosen])


class MixedUpPool(CachedPool):
    def match(self, keys: tuple[bytes, ...]) -> Hit:
        """The last block of a hit is one that was computed for something else."""
        hit = super().match(keys)
        blocks = []
        for group, found in zip(self.groups, hit.blocks, strict=True):
            others = [block for block in group.key_of if block not in found]
            blocks.append((*found[:-1], others[0]) if found and others else found)
        return Hit(tuple(blocks), hit.num_tokens)


class WrongBlock(PrefixCache):
    """Returns a wrong block with every hit."""

    name = "wrong_block"

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, inner: KVAllocator) -> CachedPool:
        self.pool = MixedUpPool(inner, spec, block_size, self.config.scope)
        return self.pool


class OffByOneAttention(GatheredAttention):
    def _tile(self, batch: Batch, group: int, rows: IntArray) -> Tile:
        """A query of a later chunk does not see its own key."""
        tile = GatheredAttention._tile(self, batch, group, rows)
        query_lens = batch.query_lens[rows]
        is_chunk = (query_lens > 1) & (batch.context_lens[rows] > query_lens)
        visible = tile.visible
        for place in np.flatnonzero(is_chunk):
            visible[place, :, :-1] = visible[place, :, 1:].clone()
            visible[place, :, -1] = False
        return tile


class OffByOne:
    """Attention that is off by one wherever a prompt comes in chunks."""

    name = "off_by_one"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def attention_impl(self, layer: LayerSpec, codec: KVCodec, device: Device) -> GatheredAttention:
        return OffByOneAttention(layer, codec, device.type)


FAULTY: tuple[type, ...] = (Starving, WrongBlock, OffByOne)


class TickClock:
    """Seconds that pass when they are read, and when somebody waits: the same in every run."""

    def __init__(self, tick: float = 0.01) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class RunnerHere:
    """Measures in this process, in ticks. classes: plugins that are not installed."""

    def __init__(self, classes: Sequence[type] = FAULTY) -> None:
        self.classes = tuple(classes)
        self.num_runs = 0

    def measure(self, config: Config, workload: Workload, *, warm: bool, timeout: float) -> Measured:
        self.num_runs += 1
        try:
            with self.engine(config) as llm:
                for _ in range(2 if warm else 1):
                    clock = TickClock()
                    run = run_in_process(llm, workload, clock=clock, wait=clock.wait)
                assert llm.audit() == []
                return measured_of(run)
        except SwitchgearError as error:
            raise PluginError(str(error)) from error

    def engine(self, config: Config) -> LLM:
        engine = {name: getattr(config.engine, name) for name in config.engine.__struct_fields__}
        plugins = {entry.name: entry.options for entry in config.plugins}
        classes = [cls for cls in self.classes if cls.name in plugins]  # type: ignore[attr-defined]
        return LLM(config.model.name, dtype=config.model.dtype, plugins=plugins, plugin_classes=classes, **engine)

    def check(
        self, off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int
    ) -> list[Verdict]:
        return check(off, workload, said, max_tokens=max_tokens, seed=seed)
