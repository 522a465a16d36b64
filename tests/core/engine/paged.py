"""A small paged allocator for tests: fixed blocks, reference counts, copy-on-write, and a strict account of itself."""

from __future__ import annotations

from collections import Counter

from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Audit, BlockCopy, KVSpec, Limits, Slots

Blocks = tuple[tuple[int, ...], ...]
"""Per group, block numbers."""


class PagedBlocks:
    """Blocks given back last are given out first, so that whoever reads a block it no longer holds reads another's."""

    def __init__(self, num_groups: int, block_size: int, num_blocks: int, copies_at_fork: bool = False) -> None:
        self.copies_at_fork = copies_at_fork
        self.num_groups = num_groups
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.free = [list(range(num_blocks)) for _ in range(num_groups)]
        self.tables: dict[int, list[list[int]]] = {}
        self.num_committed: dict[int, int] = {}
        self.pins: Counter[tuple[int, int]] = Counter()

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        tables = self.tables.get(row, [[] for _ in self.free])
        num_missing = -(-num_tokens // self.block_size) - len(tables[0])
        first_written = self.num_committed.get(row, 0) // self.block_size
        shared = [self._shared(group, table, first_written) for group, table in enumerate(tables)]
        if any(max(0, num_missing) + len(places) > len(free) for places, free in zip(shared, self.free, strict=True)):
            return None
        self.tables[row] = tables
        copies = []
        for group, (table, places) in enumerate(zip(tables, shared, strict=True)):
            for place in places:
                source, table[place] = table[place], self.free[group].pop()
                copies.append(BlockCopy(group, source, table[place]))
        new = tuple(tuple(free.pop() for _ in range(num_missing)) for free in self.free)
        for table, blocks in zip(tables, new, strict=True):
            table.extend(blocks)
        return Slots(new, tuple(copies))

    def _shared(self, group: int, table: list[int], first_written: int) -> list[int]:
        """Places in the table whose block will be written and belongs to somebody else too."""
        counts = self._counts(group)
        return [place for place in range(first_written, len(table)) if counts[table[place]] > 1]

    def _counts(self, group: int) -> Counter[int]:
        counts = Counter(block for tables in self.tables.values() for block in tables[group])
        counts.update({block: count for (its_group, block), count in self.pins.items() if its_group == group})
        return counts

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        assert num_tokens <= len(self.tables[row][0]) * self.block_size, "more tokens than blocks"
        assert not keys, "keys are for who matches them"
        self.num_committed[row] = num_tokens

    def release(self, row: int) -> None:
        tables = self.tables.pop(row, None)
        self.num_committed.pop(row, None)
        if tables is not None:
            self._free_unused(tuple(map(tuple, tables)))

    def _free_unused(self, blocks: Blocks) -> None:
        for group, numbers in enumerate(blocks):
            counts = self._counts(group)
            self.free[group] += [block for block in reversed(numbers) if not counts[block]]

    def num_free(self) -> int:
        return min(map(len, self.free))

    def adopt(self, row: int, blocks: Blocks) -> None:
        assert row not in self.tables, "a row adopts before it holds anything"
        self.tables[row] = [list(numbers) for numbers in blocks]
        self.num_committed[row] = len(blocks[0]) * self.block_size

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        num_shared = -(-num_tokens // self.block_size)
        has_partial_block = num_tokens % self.block_size > 0
        blocks = tuple(tuple(table[:num_shared]) for table in self.tables[parent])
        self.tables[row] = [list(numbers) for numbers in blocks]
        self.num_committed[row] = num_tokens
        if not (self.copies_at_fork and has_partial_block):
            return Slots(blocks)
        slots = self.grow(row, num_tokens)
        if slots is None:
            self.release(row)
            return None
        return Slots(blocks, slots.copies)

    def pin(self, blocks: Blocks) -> None:
        self.pins.update((group, block) for group, numbers in enumerate(blocks) for block in numbers)

    def unpin(self, blocks: Blocks) -> None:
        self.pins.subtract((group, block) for group, numbers in enumerate(blocks) for block in numbers)
        self.pins += Counter()
        self._free_unused(blocks)

    def audit(self) -> Audit:
        problems, num_held = [], 0
        for group, free in enumerate(self.free):
            held = {block for block, count in self._counts(group).items() if count}
            num_held += len(held)
            if sorted([*free, *held]) != list(range(self.num_blocks)):
                problems.append(f"group {group}: free {sorted(free)}, held {sorted(held)} of {self.num_blocks}")
        total = self.num_groups * self.num_blocks
        return Audit(total, sum(map(len, self.free)), num_held, problems=tuple(problems))


class PagedKV:
    """KV in small blocks that rows may share."""

    name = "paged"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        block_size: int = 4
        """Tokens a block."""
        copies_at_fork: bool = False
        """Copy a half-filled block when it is shared, not when it is written."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def kv_block_size(self, limits: Limits) -> int:
        return self.config.block_size

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> PagedBlocks:
        return PagedBlocks(len(spec), block_size, num_blocks, self.config.copies_at_fork)
