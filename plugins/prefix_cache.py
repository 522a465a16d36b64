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
from ..core.interfaces import Control, EngineHandle, KVAllocator, shares_blocks
from ..core.records import TOKEN_EQUAL, Audit, Hit, KVSpec, Slots


class PrefixCache:
    """Reuses the KV of full blocks that were computed before, for any prompt that begins the same way."""

    name = "prefix_cache"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ("paged_kv",)
    conflicts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ("wastes_less_than_a_block", "finds_prefixes_and_evicts_the_oldest")
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
        num_preempted = self.engine.preempt_all() if preempt else 0
        num_held = self.pool.num_held()
        if num_held:
            raise RequestError(f"running requests hold {num_held} KV blocks: wait for them, or pass preempt = true")
        return f"forgot {self.pool.forget()} blocks, preempted {num_preempted} sequences"

    def stats(self) -> Mapping[str, float]:
        return {
            "queries": self.pool.num_queried,
            "hits": self.pool.num_hit,
            "cached_blocks": len(self.pool.key_of),
            "evictions": self.pool.num_evicted,
        }


class CachedPool:
    """Keeps a reference of its own on every published block, and gives the least recently used up when blocks run out.

    A block that only the cache holds is evictable. Of one sequence the last block goes first, so that what is left
    can still be found from the front. Rows that compute the same side by side publish a block each; of such twins one
    stays when the rows are gone, and an evictable block never has a twin.
    """

    def __init__(
        self, inner: KVAllocator, num_groups: int, block_size: int, scope: Literal["tenant", "shared"]
    ) -> None:
        self.inner = inner
        assert shares_blocks(inner), "paged_kv is required, and its blocks can be shared"
        self.shared = inner
        self.num_groups = num_groups
        self.block_size = block_size
        self.key_scope = scope
        self.blocks_of: dict[bytes, list[int]] = {}
        """The published blocks of each key: one, or twins."""
        self.key_of: dict[int, bytes] = {}
        self.num_holders: Counter[int] = Counter()
        """Tables that each block stands in and pins from outside, for blocks that have any."""
        self.evictable: OrderedDict[int, None] = OrderedDict()
        """Published blocks that nobody holds, the next to go first."""
        self.tables: dict[int, list[int]] = {}
        self.num_committed: dict[int, int] = {}
        """Per row, the tokens before the next one that is written."""
        self.num_seen: dict[int, int] = {}
        """Per row that was admitted, the leading blocks of its table that are known to be published."""
        self.num_asked = self.num_queried = self.num_hit = self.num_evicted = 0

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        self.num_asked = len(keys)
        blocks = tuple(self.blocks_of[key][-1] for key in takewhile(self.blocks_of.__contains__, keys))
        return Hit((blocks,) * self.num_groups, len(blocks) * self.block_size)

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.adopt(row, blocks)
        self.num_committed[row] = len(blocks[0]) * self.block_size
        self._enter(row, Slots(blocks))

    # -- growing ----------------------------------------------------------------------------------------------------

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = self.inner.grow(row, num_tokens)
        while slots is None and self._can_make_room(row, num_tokens):
            self._evict()
            slots = self.inner.grow(row, num_tokens)
        if row not in self.num_seen:
            self._admit(row, is_granted=slots is not None)
        if slots is not None and (slots.blocks[0] or slots.copies):
            self._enter(row, slots)
        return slots

    def _can_make_room(self, row: int, num_tokens: int) -> bool:
        """Nothing is evicted for a row that would not fit even then."""
        table, place = self.tables.get(row, []), self.num_committed.get(row, 0) // self.block_size
        is_copied = place < len(table) and self.num_holders[table[place]] + (table[place] in self.key_of) > 1
        num_new = max(0, -(-num_tokens // self.block_size) - len(table))
        return bool(self.evictable) and num_new + is_copied <= self.num_free()

    def _admit(self, row: int, is_granted: bool) -> None:
        """A row's first blocks: counted once for each admission, however often it was tried."""
        num_asked, self.num_asked = self.num_asked, 0
        if is_granted:
            self.num_seen[row] = len(self.tables.get(row, ()))
            self.num_queried += num_asked
            self.num_hit += self.num_seen[row]

    def _enter(self, row: int, slots: Slots) -> None:
        table = self.tables.setdefault(row, [])
        table += slots.blocks[0]
        self._hold(slots.blocks[0])
        for copy in slots.copies:
            if copy.group == 0:
                table[table.index(copy.source)] = copy.target
                self._hold((copy.target,))
                self._let_go(copy.source)

    def _hold(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self.num_holders[block] += 1
            self.evictable.pop(block, None)

    def _let_go(self, block: int) -> None:
        """One holder less; what was published stays as long as there is room, unless a twin stays anyway."""
        self.num_holders[block] -= 1
        if self.num_holders[block]:
            return
        del self.num_holders[block]
        if block in self.key_of and len(self.blocks_of[self.key_of[block]]) > 1:
            self._unpublish(block)
        elif block in self.key_of:
            self.evictable[block] = None

    def _evict(self) -> None:
        block, _ = self.evictable.popitem(last=False)
        self._unpublish(block)
        self.num_evicted += 1

    # -- publishing -------------------------------------------------------------------------------------------------

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        self.inner.commit(row, num_tokens, keys)
        self.num_committed[row] = num_tokens
        seen = self.num_seen[row]
        for key, block in zip(keys[seen:], self.tables[row][seen:], strict=False):
            if block not in self.key_of:
                self._publish(key, block)
        self.num_seen[row] = len(keys)

    def _publish(self, key: bytes, block: int) -> None:
        twins = self.blocks_of.setdefault(key, [])
        twins.append(block)
        self.key_of[block] = key
        self.shared.pin(((block,),) * self.num_groups)
        if twins[0] in self.evictable:
            del self.evictable[twins[0]]
            self._unpublish(twins[0])

    def _unpublish(self, block: int) -> None:
        key = self.key_of.pop(block)
        self.blocks_of[key].remove(block)
        if not self.blocks_of[key]:
            del self.blocks_of[key]
        self.shared.unpin(((block,),) * self.num_groups)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def release(self, row: int) -> None:
        self.num_seen.pop(row, None)
        self.num_committed.pop(row, None)
        for block in reversed(self.tables.pop(row, [])):
            self._let_go(block)
        self.inner.release(row)

    def forget(self) -> int:
        """Drop every published block that nobody holds; returns how many."""
        blocks = list(self.evictable)
        self.evictable.clear()
        for block in blocks:
            self._unpublish(block)
        return len(blocks)

    def num_held(self) -> int:
        """Blocks that rows hold, published or not."""
        return len(self.num_holders)

    # -- what is passed on ------------------------------------------------------------------------------------------

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        slots = self.shared.fork(parent, row, num_tokens)
        if slots is not None:
            self.num_seen[row], self.num_committed[row] = 0, num_tokens
            self._enter(row, slots)
        return slots

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.pin(blocks)
        self._hold(blocks[0])

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for block in reversed(blocks[0]):
            self._let_go(block)
        self.shared.unpin(blocks)

    def num_free(self) -> int:
        return self.inner.num_free() + len(self.evictable)

    def audit(self) -> Audit:
        inner = self.inner.audit()
        problems = list(inner.problems)
        in_tables = Counter(block for table in self.tables.values() for block in table)
        if any(count > self.num_holders[block] for block, count in in_tables.items()):
            problems.append("a cached block counts fewer holders than it has")
        if {block for block in self.key_of if block not in self.num_holders} != set(self.evictable):
            problems.append("a cached block that nobody holds is not evictable, or one that is held is")
        num_evictable = len(self.evictable)
        return Audit(inner.total, inner.free, inner.held - num_evictable, num_evictable, tuple(problems))
