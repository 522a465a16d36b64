"""Full KV blocks are found again by the key of everything up to their end, and not computed twice.

Buys the prefill of whatever prompts share: system prompts, documents, earlier turns. Costs one hash and one look-up a
block. Wraps `paged_kv`. vLLM section 6.4 (2309.06180); RadixAttention (2312.07104).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Literal

from ..core.config import PluginConfig
from ..core.errors import RequestError
from ..core.hooks import hookimpl
from ..core.interfaces import Control, EngineHandle, KVAllocator, SharedBlocks, shares_blocks, trims_blocks
from ..core.records import NOT_HELD, TOKEN_EQUAL, Audit, Hit, KVGroup, KVSpec, Slots


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
        self.pool = CachedPool(inner, spec, block_size, self.config.scope)
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
            "cached_blocks": sum(len(group.key_of) for group in self.pool.groups),
            "evictions": sum(group.num_evicted for group in self.pool.groups),
        }


class CachedBlocks:
    """The published blocks of one group of layers, who holds them, and in which order those that nobody holds go.

    A block that only the cache holds is evictable. Rows that compute the same side by side publish a block each; of
    such twins one stays when the rows are gone, and an evictable block never has a twin.
    """

    def __init__(self, spec: KVSpec, number: int, block_size: int, shared: SharedBlocks) -> None:
        self.group: KVGroup = spec[number]
        self.block_size = block_size
        self.shared = shared
        self.before, self.after = ((),) * number, ((),) * (len(spec) - number - 1)
        """What a pin in this group says of the others."""
        self.blocks_of: dict[bytes, list[int]] = {}
        """The published blocks of each key: one, or twins."""
        self.key_of: dict[int, bytes] = {}
        self.num_holders: Counter[int] = Counter()
        """Tables that each block stands in and pins from outside, for blocks that have any."""
        self.evictable: OrderedDict[int, None] = OrderedDict()
        """Published blocks that nobody holds, the next to go first."""
        self.num_evicted = 0

    # -- finding ----------------------------------------------------------------------------------------------------

    def longest(self, keys: tuple[bytes, ...], limit: int) -> int:
        """The longest run of at most `limit` leading blocks that this group can serve.

        With a window it needs those that the next query sees. A gap among them leaves only what ends before the gap:
        every run from there to `limit` has it in its window too.
        """
        if self.group.window is None:
            return sum(1 for _ in takewhile(self.blocks_of.__contains__, keys[:limit]))
        place = limit
        while place > self.num_unseen(limit):
            place -= 1
            if keys[place] not in self.blocks_of:
                limit = place
        return limit

    def found(self, keys: tuple[bytes, ...]) -> tuple[int, ...]:
        """The blocks of a run, the newest of twins."""
        num_unseen = self.num_unseen(len(keys))
        return (NOT_HELD,) * num_unseen + tuple(self.blocks_of[key][-1] for key in keys[num_unseen:])

    def num_unseen(self, num_blocks: int) -> int:
        """How many of a run's blocks whoever goes on behind it does not see."""
        return self.group.num_unseen(num_blocks * self.block_size, self.block_size)

    # -- holding ----------------------------------------------------------------------------------------------------

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NOT_HELD:
                self.num_holders[block] += 1
                self.evictable.pop(block, None)

    def let_go(self, blocks: list[int] | tuple[int, ...]) -> None:
        """One holder less for each, the last first: of one sequence it goes first, so that what is left is found."""
        for block in reversed(blocks):
            if block != NOT_HELD:
                self._let_go(block)

    def _let_go(self, block: int) -> None:
        """What was published stays as long as there is room, unless a twin stays anyway."""
        self.num_holders[block] -= 1
        if self.num_holders[block]:
            return
        del self.num_holders[block]
        if block in self.key_of and len(self.blocks_of[self.key_of[block]]) > 1:
            self.unpublish(block)
        elif block in self.key_of:
            self.evictable[block] = None

    def is_shared(self, block: int) -> bool:
        return self.num_holders[block] + (block in self.key_of) > 1

    @property
    def num_free(self) -> int:
        return self.group.num_blocks - len(self.num_holders)

    @property
    def num_unused(self) -> int:
        """Free blocks in which nothing can be found."""
        return self.num_free - len(self.evictable)

    def evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self.evictable.popitem(last=False)
            self.unpublish(block)
        self.num_evicted += count

    def forget(self) -> int:
        blocks = list(self.evictable)
        self.evictable.clear()
        for block in blocks:
            self.unpublish(block)
        return len(blocks)

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, key: bytes, block: int) -> None:
        twins = self.blocks_of.setdefault(key, [])
        twins.append(block)
        self.key_of[block] = key
        self.shared.pin((*self.before, (block,), *self.after))
        if twins[0] in self.evictable:
            del self.evictable[twins[0]]
            self.unpublish(twins[0])

    def unpublish(self, block: int) -> None:
        key = self.key_of.pop(block)
        self.blocks_of[key].remove(block)
        if not self.blocks_of[key]:
            del self.blocks_of[key]
        self.shared.unpin((*self.before, (block,), *self.after))

    def problems(self, tables: Iterable[list[int]]) -> list[str]:
        """What is wrong in the books. tables: of the group, one for each row."""
        found = []
        in_tables = Counter(block for table in tables for block in table if block != NOT_HELD)
        if any(count > self.num_holders[block] for block, count in in_tables.items()):
            found.append("a cached block counts fewer holders than it has")
        if {block for block in self.key_of if block not in self.num_holders} != set(self.evictable):
            found.append("a cached block that nobody holds is not evictable, or one that is held is")
        return found


class CachedPool:
    """Keeps a reference of its own on every published block, and gives the least recently used up when blocks run out.

    Every group of layers has its own books, a hit is the longest run that all of them can serve: a full group from the
    front, a window group the end of it. What a row has passed in a window group is evictable, and found until then.
    """

    def __init__(self, inner: KVAllocator, spec: KVSpec, block_size: int, scope: Literal["tenant", "shared"]) -> None:
        self.inner = inner
        assert shares_blocks(inner), "paged_kv is required, and its blocks can be shared"
        self.shared: SharedBlocks = inner
        self.block_size = block_size
        self.key_scope = scope
        self.groups = [CachedBlocks(spec, number, block_size, inner) for number in range(len(spec))]
        most = max(group.num_blocks for group in spec)
        self.uncut = [group for group in self.groups if group.group.num_blocks == most]
        self.tables: dict[int, tuple[list[int], ...]] = {}
        self.num_committed: dict[int, int] = {}
        """Per row, the tokens before the next one that is written."""
        self.num_seen: dict[int, int] = {}
        """Per row that was admitted, the leading blocks of its tables that are known to be published."""
        self.num_asked = self.num_queried = self.num_hit = 0

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        self.num_asked = len(keys)
        length, before = len(keys), -1
        while length != before:
            # what one group can serve may end in a gap of another
            before = length
            for group in self.groups:
                length = group.longest(keys, length)
        return Hit(tuple(group.found(keys[:length]) for group in self.groups), length * self.block_size)

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.adopt(row, blocks)
        self.num_committed[row] = len(blocks[0]) * self.block_size
        self._enter(row, Slots(blocks))

    # -- growing ----------------------------------------------------------------------------------------------------

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = self.inner.grow(row, num_tokens)
        if slots is None and self._makes_room(row, num_tokens):
            slots = self.inner.grow(row, num_tokens)
        if row not in self.num_seen:
            self._admit(row, is_granted=slots is not None)
        if slots is not None and (slots.blocks[0] or slots.copies):
            self._enter(row, slots)
        return slots

    def _makes_room(self, row: int, num_tokens: int) -> bool:
        """Evict what the row lacks; nothing is evicted for a row that would not fit even then."""
        tables = self.tables.get(row) or tuple([] for _ in self.groups)
        place = self.num_committed.get(row, 0) // self.block_size
        num_new = max(0, -(-num_tokens // self.block_size) - len(tables[0]))
        missing = []
        for group, table in zip(self.groups, tables, strict=True):
            is_copied = place < len(table) and group.is_shared(table[place])
            missing.append(max(0, num_new + is_copied - group.num_unused))
            if missing[-1] > len(group.evictable):
                return False
        for group, count in zip(self.groups, missing, strict=True):
            group.evict(count)
        return any(missing)

    def _admit(self, row: int, is_granted: bool) -> None:
        """A row's first blocks: counted once for each admission, however often it was tried."""
        num_asked, self.num_asked = self.num_asked, 0
        if is_granted:
            self.num_seen[row] = len(self.tables[row][0]) if row in self.tables else 0
            self.num_queried += num_asked
            self.num_hit += self.num_seen[row]

    def _enter(self, row: int, slots: Slots) -> None:
        tables = self.tables.setdefault(row, tuple([] for _ in self.groups))
        for group, table, blocks in zip(self.groups, tables, slots.blocks, strict=True):
            table += blocks
            group.hold(blocks)
        for copy in slots.copies:
            group, table = self.groups[copy.group], tables[copy.group]
            table[table.index(copy.source)] = copy.target
            group.hold([copy.target])
            group.let_go([copy.source])

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        slots = self.shared.fork(parent, row, num_tokens)
        if slots is not None:
            self.num_seen[row], self.num_committed[row] = 0, num_tokens
            self._enter(row, slots)
        return slots

    # -- publishing -------------------------------------------------------------------------------------------------

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        self.inner.commit(row, num_tokens, keys)
        self.num_committed[row] = num_tokens
        seen = self.num_seen[row]
        for group, table in zip(self.groups, self.tables[row], strict=True) if len(keys) > seen else ():
            for key, block in zip(keys[seen:], table[seen:], strict=False):
                if block != NOT_HELD and block not in group.key_of:
                    group.publish(key, block)
        self.num_seen[row] = len(keys)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def trim(self, row: int, num_blocks: tuple[int, ...]) -> None:
        assert trims_blocks(self.inner), "paged_kv takes back what rows have passed"
        for group, table, count in zip(self.groups, self.tables[row], num_blocks, strict=True):
            first = count
            while first and table[first - 1] != NOT_HELD:
                first -= 1
            group.let_go(table[first:count])
            table[first:count] = [NOT_HELD] * (count - first)
        self.inner.trim(row, num_blocks)

    def release(self, row: int) -> None:
        self.num_seen.pop(row, None)
        self.num_committed.pop(row, None)
        for group, table in zip(self.groups, self.tables.pop(row, ()), strict=False):
            group.let_go(table)
        self.inner.release(row)

    def forget(self) -> int:
        """Drop every published block that nobody holds; returns how many."""
        return sum(group.forget() for group in self.groups)

    def num_held(self) -> int:
        """Blocks that rows hold, published or not."""
        return sum(len(group.num_holders) for group in self.groups)

    # -- what is passed on ------------------------------------------------------------------------------------------

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        self.shared.pin(blocks)
        for group, numbers in zip(self.groups, blocks, strict=True):
            group.hold(numbers)

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for group, numbers in zip(self.groups, blocks, strict=True):
            group.let_go(numbers)
        self.shared.unpin(blocks)

    def num_free(self) -> int:
        return min(group.num_free for group in self.uncut)

    def audit(self) -> Audit:
        inner = self.inner.audit()
        problems = list(inner.problems)
        for number, group in enumerate(self.groups):
            problems += group.problems([tables[number] for tables in self.tables.values()])
        num_evictable = sum(len(group.evictable) for group in self.groups)
        return Audit(inner.total, inner.free, inner.held - num_evictable, num_evictable, tuple(problems))
