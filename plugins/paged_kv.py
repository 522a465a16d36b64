"""KV in blocks of a few tokens, taken as a sequence grows and shared by sequences that begin alike.

Buys memory: no external fragmentation and at most block_size - 1 unused tokens a sequence, so several times the
sequences in the same bytes; layers that see a window hold no more than that. Costs a block-table look-up in attention,
and preemption when blocks run out. PagedAttention (SOSP'23, 2309.06180), section 4.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..core.config import PluginConfig
from ..core.hooks import hookimpl
from ..core.records import NOT_HELD, TOKEN_EQUAL, Audit, BlockCopy, KVSpec, Limits, Slots


class PagedKV:
    """Fixed-size KV blocks: no external fragmentation, at most block_size - 1 wasted tokens a sequence."""

    name = "paged_kv"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ("wastes_less_than_a_block",)
    hook_api = (1, 0)

    class Config(PluginConfig):
        block_size: Annotated[int, msgspec.Meta(ge=1)] = 16
        """Tokens per block."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int) -> BlockPool:
        return BlockPool(block_size, [group.num_blocks for group in spec])

    def kv_block_size(self, limits: Limits) -> int:
        return min(self.config.block_size, limits.max_model_len)

    def kv_window_blocks(self, window: int, limits: Limits) -> int:
        """What rows can hold at once: each its window, whose ends lie within blocks, and all of them a step."""
        block_size = self.kv_block_size(limits)
        step = max(limits.max_step_tokens, limits.max_model_len)
        return limits.max_num_seqs * (-(-window // block_size) + 2) - (-step // block_size)


class Blocks:
    """The blocks of one group of layers. A block is free when nobody holds a reference to it.

    Those that were given up last are taken first, in the order that they had: their memory is in caches, and the system
    has handed it out already.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(num_blocks))
        self.num_references = [0] * num_blocks

    def take(self) -> int:
        block = self.free.popleft()
        self.num_references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NOT_HELD:
                self.num_references[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            if block == NOT_HELD:
                continue
            self.num_references[block] -= 1
            if not self.num_references[block]:
                self.free.appendleft(block)


@dataclass(slots=True)
class Table:
    """What one row holds."""

    blocks: tuple[list[int], ...]
    """Per group, of equal length; NOT_HELD in front, where the row has passed on."""
    num_written: int = 0
    """Tokens whose place may have been written: a shared block before this point is read only."""


class BlockPool:
    """Blocks with reference counts, for each group of layers its own.

    A block is shared by forks, by rows that adopted it, and by whoever pinned it. In a group with a window a row gives
    up the blocks that it has passed, so it holds ceil(window / block_size) + 1 and those of its step at most.
    """

    def __init__(self, block_size: int, num_blocks: Sequence[int]) -> None:
        """num_blocks: of each group."""
        self.block_size = block_size
        self.groups = [Blocks(count) for count in num_blocks]
        self.uncut = [group for group, count in zip(self.groups, num_blocks, strict=True) if count == max(num_blocks)]
        self.tables: dict[int, Table] = {}
        self.nothing = Slots(((),) * len(self.groups))
        """What most calls of `grow` change."""

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        table = self.tables.get(row) or Table(tuple([] for _ in self.groups))
        num_new = -(-num_tokens // self.block_size) - len(table.blocks[0])
        place = table.num_written // self.block_size
        shared = self._shared_at(table, place) if num_tokens > table.num_written else ()
        if num_new <= 0 and not shared:
            # most calls: the next token of an output goes into the block of the last
            if num_tokens > table.num_written:
                table.num_written = num_tokens
            return self.nothing
        num_new = max(0, num_new)
        for number, group in enumerate(self.groups):
            if num_new + (number in shared) > len(group.free):
                return None
        self.tables[row] = table
        table.num_written = max(table.num_written, num_tokens)
        copies = tuple(self._own(table, place, number) for number in shared)
        new = tuple(tuple(group.take() for _ in range(num_new)) for group in self.groups)
        for blocks, taken in zip(table.blocks, new, strict=True):
            blocks += taken
        return Slots(new, copies)

    def _shared_at(self, table: Table, place: int) -> tuple[int, ...]:
        """Groups in which the block that is to be written belongs to others too; only the last, half-filled one can."""
        if place >= len(table.blocks[0]):
            return ()
        shared: tuple[int, ...] = ()
        for number, group in enumerate(self.groups):
            if group.num_references[table.blocks[number][place]] > 1:
                shared += (number,)
        return shared

    def _own(self, table: Table, place: int, number: int) -> BlockCopy:
        """Copy-on-write: the row gets a copy of its own, the others keep the block."""
        group, blocks = self.groups[number], table.blocks[number]
        source, blocks[place] = blocks[place], group.take()
        group.drop([source])
        return BlockCopy(number, source, blocks[place])

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        assert row not in self.tables, "only a row that holds nothing can adopt"
        self.pin(blocks)
        self.tables[row] = Table(tuple(map(list, blocks)), len(blocks[0]) * self.block_size)

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        count = -(-num_tokens // self.block_size)
        blocks = tuple(tuple(blocks[:count]) for blocks in self.tables[parent].blocks)
        self.pin(blocks)
        self.tables[row] = Table(tuple(map(list, blocks)), num_tokens)
        return Slots(blocks)

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for group, numbers in zip(self.groups, blocks, strict=True):
            group.share(numbers)

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for group, numbers in zip(self.groups, blocks, strict=True):
            group.drop(numbers)

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        """Whatever lies beyond the accepted tokens will be written again."""
        self.tables[row].num_written = num_tokens

    def trim(self, row: int, num_blocks: tuple[int, ...]) -> None:
        for group, blocks, count in zip(self.groups, self.tables[row].blocks, num_blocks, strict=True):
            first = count
            while first and blocks[first - 1] != NOT_HELD:
                first -= 1
            group.drop(blocks[first:count])
            blocks[first:count] = [NOT_HELD] * (count - first)

    def release(self, row: int) -> None:
        table = self.tables.pop(row, None)
        if table is not None:
            self.unpin(tuple(map(tuple, table.blocks)))

    def num_free(self) -> int:
        return min(len(group.free) for group in self.uncut)

    def audit(self) -> Audit:
        problems: list[str] = []
        num_held = 0
        for number, group in enumerate(self.groups):
            held = [block for block, count in enumerate(group.num_references) if count > 0]
            num_held += len(held)
            in_tables = Counter(block for table in self.tables.values() for block in table.blocks[number])
            del in_tables[NOT_HELD]
            if sorted([*held, *group.free]) != list(range(len(group.num_references))):
                problems.append("a block is lost, or both free and held")
            if any(count > group.num_references[block] for block, count in in_tables.items()):
                problems.append("a block stands in more tables than it has references")
        total = sum(len(group.num_references) for group in self.groups)
        return Audit(total, sum(len(group.free) for group in self.groups), num_held, problems=tuple(problems))
