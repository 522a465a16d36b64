"""KV in blocks of a few tokens, taken as a sequence grows and shared by sequences that begin alike.

Buys memory: no external fragmentation and at most block_size - 1 unused tokens a sequence, so several times the
sequences in the same bytes. Costs a block-table look-up in attention, and preemption when blocks run out.
PagedAttention (SOSP'23, 2309.06180), section 4.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ..core.config import PluginConfig
from ..core.hooks import hookimpl
from ..core.records import TOKEN_EQUAL, Audit, BlockCopy, KVSpec, Limits, Slots


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
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> BlockPool:
        return BlockPool(len(spec), block_size, num_blocks)

    def kv_block_size(self, limits: Limits) -> int:
        return min(self.config.block_size, limits.max_model_len)


@dataclass(slots=True)
class Table:
    """The blocks of one row, and how many tokens they are to hold."""

    blocks: list[int] = field(default_factory=list)
    num_written: int = 0
    """Tokens whose place may have been written: a shared block before this point is read only."""


class BlockPool:
    """Blocks with reference counts. A block number stands for the same place in every group of layers.

    A block is shared by forks, by rows that adopted it, and by whoever pinned it; it is free when nobody holds it.
    """

    def __init__(self, num_groups: int, block_size: int, num_blocks: int) -> None:
        self.num_groups = num_groups
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.free = deque(range(num_blocks))
        self.num_references = [0] * num_blocks
        self.tables: dict[int, Table] = {}
        self.nothing = self._slots([])
        """What most calls of `grow` change."""

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        table = self.tables.get(row) or Table()
        num_new = -(-num_tokens // self.block_size) - len(table.blocks)
        copied = self._shared_tail(table) if num_tokens > table.num_written else None
        if max(num_new, 0) + (copied is not None) > len(self.free):
            return None
        self.tables[row] = table
        table.num_written = max(table.num_written, num_tokens)
        if num_new <= 0 and copied is None:
            return self.nothing
        copies = self._own(table, copied) if copied is not None else ()
        new = [self._take() for _ in range(num_new)]
        table.blocks += new
        return self._slots(new, copies)

    def _shared_tail(self, table: Table) -> int | None:
        """Index of the partly filled block that is to be written and belongs to others too; only the last can be."""
        index = table.num_written // self.block_size
        is_shared = index < len(table.blocks) and self.num_references[table.blocks[index]] > 1
        return index if is_shared else None

    def _own(self, table: Table, index: int) -> tuple[BlockCopy, ...]:
        """Copy-on-write: the row gets a copy of its own, the others keep the block."""
        source = table.blocks[index]
        target = table.blocks[index] = self._take()
        self._drop(source)
        return tuple(BlockCopy(group, source, target) for group in range(self.num_groups))

    def _slots(self, new: list[int], copies: tuple[BlockCopy, ...] = ()) -> Slots:
        return Slots((tuple(new),) * self.num_groups, copies)

    def _take(self) -> int:
        block = self.free.popleft()
        self.num_references[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.num_references[block] -= 1
        if not self.num_references[block]:
            self.free.append(block)

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        assert row not in self.tables, "only a row that holds nothing can adopt"
        self.pin(blocks)
        self.tables[row] = Table(list(blocks[0]), len(blocks[0]) * self.block_size)

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        blocks = self.tables[parent].blocks[: -(-num_tokens // self.block_size)]
        for block in blocks:
            self.num_references[block] += 1
        self.tables[row] = Table(list(blocks), num_tokens)
        return self._slots(blocks)

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for block in blocks[0]:
            self.num_references[block] += 1

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        for block in blocks[0]:
            self._drop(block)

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        """Whatever lies beyond the accepted tokens will be written again."""
        self.tables[row].num_written = num_tokens

    def release(self, row: int) -> None:
        table = self.tables.pop(row, None)
        for block in table.blocks if table else ():
            self._drop(block)

    def num_free(self) -> int:
        return len(self.free)

    def audit(self) -> Audit:
        held = [block for block in range(self.num_blocks) if self.num_references[block] > 0]
        in_tables = Counter(block for table in self.tables.values() for block in table.blocks)
        problems = []
        if sorted([*held, *self.free]) != list(range(self.num_blocks)):
            problems.append("a block is lost, or both free and held")
        if any(count > self.num_references[block] for block, count in in_tables.items()):
            problems.append("a block stands in more tables than it has references")
        return Audit(self.num_blocks, len(self.free), len(held), problems=tuple(problems))
