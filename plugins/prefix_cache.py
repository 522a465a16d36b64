"""Full KV blocks are found again by the key of everything up to their end, and not computed twice.

Buys the prefill of whatever prompts share: system prompts, documents, earlier turns. Costs one hash and one look-up a
block. Wraps `paged_kv`. vLLM section 6.4 (2309.06180); RadixAttention (2312.07104).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Literal

from ..core.config import PluginConfig
from ..core.errors import RequestError
from ..core.hooks import hookimpl
from ..core.interfaces import Control, EngineHandle, KVAllocator, SharedBlocks
from ..core.records import TOKEN_EQUAL, Audit, Hit, KVSpec, Slots


class PrefixCache:
    """Reuses the KV of full blocks that were computed before, for any prompt that begins the same way."""

    name = "prefix_cache"
    equivalence = TOKEN_EQUAL
    requires = ("paged_kv",)
    conflicts = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        scope: Literal["tenant", "shared"] = "tenant"
        """Who may hit a block: the tenant whose request computed it, or everybody, who then learn from the time to
        first token what others asked."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, inner: KVAllocator) -> CachedPool:
        self.pool = CachedPool(inner, len(spec), block_size, self.config.scope)
        return self.pool

    @hookimpl
    def control(self, engine: EngineHandle) -> Control:
        self.engine = engine
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {"reset": self.reset}

    def reset(self, preempt: bool = False) -> str:
        """Forget every block. Refused while rows hold some, unless they may be preempted and start again."""
        num_held = self.pool.num_blocks_in_use()
        if num_held and not preempt:
            raise RequestError(f"running requests hold {num_held} cached blocks: wait for them, or pass preempt = true")
        num_preempted = self.engine.preempt_all() if num_held else 0
        return f"forgot {self.pool.forget()} blocks, preempted {num_preempted} sequences"

    def stats(self) -> Mapping[str, float]:
        return {
            "queries": self.pool.num_queried,
            "hits": self.pool.num_hit,
            "cached_blocks": len(self.pool.block_of),
            "evictions": self.pool.num_evicted,
        }


class CachedPool:
    """Keeps a reference of its own on every published block, and gives the least recently used up when blocks run out.

    A block that only the cache holds is evictable. Of one sequence the last block goes first, so that what is left
    can still be found from the front.
    """

    def __init__(
        self, inner: KVAllocator, num_groups: int, block_size: int, scope: Literal["tenant", "shared"]
    ) -> None:
        assert isinstance(inner, SharedBlocks), "paged_kv is required, and its blocks can be shared"
        self.inner, self.shared = inner, inner
        self.num_groups = num_groups
        self.block_size = block_size
        self.key_scope = scope
        self.block_of: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}
        self.num_users: dict[int, int] = {}
        """Rows that use each published block."""
        self.evictable: OrderedDict[int, None] = OrderedDict()
        """Published blocks without a user, the next to go first."""
        self.tables: dict[int, list[int]] = {}
        self.used: dict[int, list[int]] = {}
        """Per row, the published blocks of its table."""
        self.num_seen: dict[int, int] = {}
        """Per row that was admitted, the leading blocks of its table that are published or have a published twin."""
        self.num_asked = self.num_queried = self.num_hit = self.num_evicted = 0

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        self.num_asked = len(keys)
        blocks = tuple(self.block_of[key] for key in takewhile(self.block_of.__contains__, keys))
        return Hit((blocks,) * self.num_groups, len(blocks) * self.block_size)

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.adopt(row, blocks)
        self.tables[row] = list(blocks[0])
        self.used[row] = []
        for block in blocks[0]:
            self._use(row, block)

    def _use(self, row: int, block: int) -> None:
        self.used[row].append(block)
        self.num_users[block] += 1
        self.evictable.pop(block, None)

    # -- growing ----------------------------------------------------------------------------------------------------

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        num_new = -(-num_tokens // self.block_size) - len(self.tables.get(row, ()))
        slots = self.inner.grow(row, num_tokens) if num_new <= self.num_free() else None
        while slots is None and self.evictable and num_new <= self.num_free():
            self._evict()
            slots = self.inner.grow(row, num_tokens)
        if row not in self.num_seen:
            self._admit(row, is_granted=slots is not None)
        if slots is not None:
            self._enter(row, slots)
        return slots

    def _admit(self, row: int, is_granted: bool) -> None:
        """A row's first blocks: counted once for each admission, however often it was tried."""
        num_asked, self.num_asked = self.num_asked, 0
        if is_granted:
            hit = self.used.setdefault(row, [])
            self.num_seen[row] = len(hit)
            self.num_queried += num_asked
            self.num_hit += len(hit)

    def _enter(self, row: int, slots: Slots) -> None:
        table = self.tables.setdefault(row, [])
        for copy in slots.copies:
            if copy.group == 0:
                table[table.index(copy.source)] = copy.target
        table += slots.blocks[0]

    def _evict(self) -> None:
        block, _ = self.evictable.popitem(last=False)
        self._unpublish(block)
        self.num_evicted += 1

    def _unpublish(self, block: int) -> None:
        del self.block_of[self.key_of.pop(block)]
        del self.num_users[block]
        self.shared.unpin(((block,),) * self.num_groups)

    # -- publishing -------------------------------------------------------------------------------------------------

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        self.inner.commit(row, num_tokens, keys)
        seen = self.num_seen[row]
        for key, block in zip(keys[seen:], self.tables[row][seen:], strict=False):
            if key not in self.block_of and block not in self.key_of:
                self.block_of[key], self.key_of[block], self.num_users[block] = block, key, 0
                self.shared.pin(((block,),) * self.num_groups)
            if block in self.key_of:
                self._use(row, block)
        self.num_seen[row] = len(keys)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def release(self, row: int) -> None:
        self.tables.pop(row, None)
        self.num_seen.pop(row, None)
        for block in reversed(self.used.pop(row, [])):
            self.num_users[block] -= 1
            if not self.num_users[block]:
                self.evictable[block] = None
        self.inner.release(row)

    def forget(self) -> int:
        """Drop every published block that no row uses; returns how many."""
        blocks = list(self.evictable)
        for block in blocks:
            self._unpublish(block)
        self.evictable.clear()
        return len(blocks)

    def num_blocks_in_use(self) -> int:
        return len(self.key_of) - len(self.evictable)

    # -- what is passed on ------------------------------------------------------------------------------------------

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        slots = self.shared.fork(parent, row, num_tokens)
        if slots is not None:
            self.tables[row], self.used[row], self.num_seen[row] = list(slots.blocks[0]), [], 0
        return slots

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.pin(blocks)

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.unpin(blocks)

    def num_free(self) -> int:
        return self.inner.num_free() + len(self.evictable)

    def audit(self) -> Audit:
        inner = self.inner.audit()
        problems = list(inner.problems)
        users = Counter(block for used in self.used.values() for block in used)
        if any(self.num_users[block] != users[block] for block in self.key_of):
            problems.append("a cached block counts other users than it has")
        if {block for block in self.key_of if not users[block]} != set(self.evictable):
            problems.append("a cached block without users is not evictable, or one with users is")
        num_evictable = len(self.evictable)
        return Audit(inner.total, inner.free, inner.held - num_evictable, num_evictable, tuple(problems))
