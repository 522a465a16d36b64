"""Plugins with one fault each, for the kit to find."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from switchgear.core.config import PluginConfig
from switchgear.core.defaults import GatheredAttention, Tile
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import KVAllocator, KVCodec
from switchgear.core.records import (
    NOT_HELD,
    TOKEN_EQUAL,
    Batch,
    Hit,
    IntArray,
    KVSpec,
    LayerSpec,
    Limits,
    Plan,
    Slots,
    StepView,
)
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import BlockPool, PagedKV
from switchgear.plugins.prefix_cache import CachedPool, PrefixCache


class Base:
    """What a plugin must have."""

    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Any) -> None: ...


def policy(plan: Callable[[StepView], Any], its_claims: tuple[str, ...] = ()) -> type:
    class Planted(Base):
        """Plans what the test says."""

        name = "planted"
        claims = its_claims

        @hookimpl
        def schedule_step(self) -> Planted:
            return self

        def plan(self, view: StepView) -> Any:
            return plan(view)

    return Planted


def modifier(revise: Callable[[Plan, StepView], Plan], its_claims: tuple[str, ...] = ()) -> type:
    class Planted(Base):
        """Revises as the test says."""

        name = "planted"
        claims = its_claims

        @hookimpl
        def schedule_step(self) -> Planted:
            return self

        def revise(self, plan: Plan, view: StepView) -> Plan:
            return revise(plan, view)

    return Planted


# -- scheduling -----------------------------------------------------------------------------------------------------


def newest_only(view: StepView) -> Plan:
    """Starves: of those who run only the last two, and always room for who is new."""
    running, waiting = view.rows[: view.num_running][-2:], view.rows[view.num_running :]
    order = np.concatenate([running, waiting])
    pending = dict(zip(view.rows.tolist(), view.num_pending.tolist(), strict=True))
    return Plan(order, np.array([pending[row] for row in order.tolist()], dtype=np.int64))


def writes_into_view(plan: Plan, view: StepView) -> Plan:
    view.priority[:] = 0
    return plan


def writes_behind_the_lock(plan: Plan, view: StepView) -> Plan:
    everything = cast(IntArray, view.priority.base)
    everything.setflags(write=True)
    view.priority.setflags(write=True)
    view.priority[:] = 7
    return plan


def writes_into_plan(plan: Plan, view: StepView) -> Plan:
    plan.num_tokens[:] = 1
    return plan


def day_of_the_week(plan: Plan, view: StepView) -> Plan:
    """Reads the clock where no reader of sources looks."""
    is_even = int(__import__("time").time() // 86_400) % 2
    return replace(plan, order=plan.order[::-1], num_tokens=plan.num_tokens[::-1]) if is_even else plan


class PrefillsFirst(ChunkedPrefill):
    """Splits prompts, and serves the longest first."""

    name = "planted"

    def revise(self, plan: Plan, view: StepView) -> Plan:
        plan = super().revise(plan, view)
        order = np.argsort(-plan.num_tokens, kind="stable")
        budget = max(1, (plan.token_budget or 0) // 2)
        return replace(plan, order=plan.order[order], num_tokens=plan.num_tokens[order], token_budget=budget)


class SlowStart(ContinuousBatching):
    """Admits in every third step only."""

    name = "planted"

    def plan(self, view: StepView) -> Plan:
        count = len(view.rows) if view.step % 3 == 0 else max(1, view.num_running)
        return Plan(view.rows[:count], view.num_pending[:count])


# -- KV -------------------------------------------------------------------------------------------------------------


def paged(pool: type[BlockPool], its_claims: tuple[str, ...] = ()) -> type:
    class Planted(PagedKV):
        """KV in small blocks, with a fault."""

        name = "planted"
        claims = its_claims

        def kv_block_size(self, limits: Limits) -> int:
            return 4

        @hookimpl
        def allocate_kv(self, spec: KVSpec, block_size: int) -> BlockPool:
            return pool(block_size, [group.num_blocks for group in spec])

    return Planted


class LeaksEarly(BlockPool):
    """Loses the block of a row that leaves with its first one."""

    def release(self, row: int) -> None:
        table = self.tables.get(row)
        if table is not None and len(table.blocks[0]) == 1:
            del self.tables[row]
        else:
            super().release(row)


class ForgetsCopies(BlockPool):
    """Copies on write, and tells nobody."""

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = super().grow(row, num_tokens)
        return slots and Slots(slots.blocks)


class KeepsReserve(BlockPool):
    """Does not give the last two blocks away."""

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        table = self.tables.get(row)
        num_new = -(-num_tokens // self.block_size) - (len(table.blocks[0]) if table else 0)
        return None if num_new > 0 and self.num_free() - num_new < 2 else super().grow(row, num_tokens)


class OneGroup(BlockPool):
    """Forgets that there may be two KV groups."""

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = super().grow(row, num_tokens)
        return slots and Slots(slots.blocks[:1], slots.copies)


class TrimsTooMuch(BlockPool):
    """Takes back one block more than was said."""

    def trim(self, row: int, num_blocks: tuple[int, ...]) -> None:
        super().trim(row, tuple(count + (count > 0) for count in num_blocks))


class CountsCommits(BlockPool):
    """Cannot release what was never committed."""

    def __init__(self, block_size: int, num_blocks: Sequence[int]) -> None:
        super().__init__(block_size, num_blocks)
        self.is_committed: dict[int, bool] = {}

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = super().grow(row, num_tokens)
        if slots is not None:
            self.is_committed[row] = False
        return slots

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        super().commit(row, num_tokens, keys)
        self.is_committed[row] = True

    def release(self, row: int) -> None:
        if self.is_committed.pop(row, True):
            super().release(row)


def cached(pool: type[CachedPool]) -> type:
    class Planted(PrefixCache):
        """A prefix cache with a fault."""

        name = "planted"

        @hookimpl
        def allocate_kv(self, spec: KVSpec, block_size: int, inner: KVAllocator) -> CachedPool:
            self.pool = pool(inner, spec, block_size, "tenant")
            return self.pool

    return Planted


class FindsWrongBlocks(CachedPool):
    """Finds the right number of blocks; the last is another's where there is another."""

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        hit = super().match(keys)
        others = [block for block in self.groups[0].key_of if block not in hit.blocks[0]]
        if not hit.num_tokens or not others:
            return hit
        return replace(hit, blocks=((*hit.blocks[0][:-1], others[0]), *hit.blocks[1:]))


class HitsBesideTheWindow(CachedPool):
    """Takes the last block for all that a window needs."""

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        hit = super().match(keys)
        unneeded = [(NOT_HELD,) * (len(blocks) - 1) for blocks in hit.blocks[1:]]
        ends = [before + blocks[-1:] for before, blocks in zip(unneeded, hit.blocks[1:], strict=True)]
        return replace(hit, blocks=(hit.blocks[0], *ends))


class EvictsNewest(CachedPool):
    """Gives up what was used last."""

    def _makes_room(self, row: int, num_tokens: int) -> bool:
        for group in self.groups:
            group.evictable = OrderedDict(reversed(group.evictable.items()))
        return super()._makes_room(row, num_tokens)


class ForgetsAtOnce(CachedPool):
    """Gives up every block as soon as nobody holds it."""

    def release(self, row: int) -> None:
        super().release(row)
        self.forget()


class ChattyWrapper(Base):
    """Asks the allocator below once for every token."""

    name = "chatty"

    @hookimpl
    def allocate_kv(self, inner: KVAllocator) -> Chatty:
        return Chatty(inner)


class Chatty:
    def __init__(self, inner: KVAllocator) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        for _ in range(num_tokens):
            self.inner.num_free()
        return self.inner.grow(row, num_tokens)


class AskedForEveryToken(PagedKV):
    """Is asked by a wrapper once for every token."""

    name = "planted"
    requires = ("chatty",)


# -- the worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffByOne(GatheredAttention):
    """In a later chunk of a prompt, each query misses the newest token that it may see."""

    def _tile(self, batch: Batch, group: int, rows: IntArray) -> Tile:
        tile = GatheredAttention._tile(self, batch, group, rows)
        num_queries = tile.visible.shape[1]
        if num_queries == 1 or (batch.context_lens[rows] == num_queries).all():
            return tile
        visible = tile.visible.clone()
        visible[:, 1:] = tile.visible[:, :-1]
        return replace(tile, visible=visible)


class PlantedAttention(Base):
    """Eager attention with a fault."""

    name = "planted"

    @hookimpl
    def attention_impl(self, layer: LayerSpec, codec: KVCodec) -> OffByOne:
        return OffByOne(layer, codec)
