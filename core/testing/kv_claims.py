"""What small blocks and prefix caches claim, checked on random histories of an allocator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..records import Hit, Slots
from .failure import KitFailure
from .histories import run_machine
from .kv_histories import Holder, KVHistories
from .subject import Subject


class BlockHistories(KVHistories):
    """Small blocks: room wherever it lies, and no more than asked for."""

    def check_grow(self, row: Holder, needed: int, slots: Slots | None, before: tuple[int, ...]) -> None:
        lacking = [group for group in range(len(self.spec)) if self.wanted(row, group, needed) > self.num_free(group)]
        if slots is None and not lacking:
            raise KitFailure(f"no room for {needed} blocks although as many are free: external fragmentation.")
        if slots is None:
            return
        if any(len(blocks) != needed for blocks in slots.blocks):
            raise KitFailure(f"{[*map(len, slots.blocks)]} blocks were given where {needed} are needed: waste.")
        if len({copy.group for copy in slots.copies}) < len(slots.copies):
            raise KitFailure(f"{len(slots.copies)} blocks are copied: only the last, partly filled one is written.")

    def wanted(self, row: Holder, group: int, needed: int) -> int:
        """Blocks that a row takes in a group: new ones, and a copy of one that it shares and writes."""
        place, table = row.num_committed // self.kv.block_size, row.tables[group]
        others = {block for other in self.living.values() if other is not row for block in other.tables[group]}
        return needed + (place < len(table) and table[place] in others)

    def num_free(self, group: int) -> int:
        return self.spec[group].num_blocks - len(self.held(group))


class PrefixHistories(KVHistories):
    """A model of the cache: which blocks hold a key, and in which order those without a row go.

    Prompts end within a block and all layers see everything, so that nobody computes a block that is cached: what
    becomes of such twins is open.
    """

    may_have_windows = False

    def begin(self) -> None:
        self.key_of: dict[int, bytes] = {}
        self.oldest: list[int] = []

    def prompt_length(self, length: int) -> int:
        return length + (length % self.kv.block_size == 0)

    def check_hit(self, keys: Sequence[bytes], hit: Hit) -> None:
        (blocks,) = hit.blocks
        cached = set(self.key_of.values())
        expected = list(takewhile(cached.__contains__, keys))
        if [self.key_of.get(block) for block in blocks] != expected:
            raise KitFailure(
                f"a prompt hits {len(blocks)} blocks where {len(expected)} are cached: full, committed blocks are "
                "found until their memory is needed, and no others."
            )
        self.oldest = [block for block in self.oldest if block not in blocks]

    def check_grow(self, row: Holder, needed: int, slots: Slots | None, before: tuple[int, ...]) -> None:
        if slots is None:
            return
        taken = [*slots.blocks[0], *(copy.target for copy in slots.copies)]
        num_evicted = len(taken) - (self.kv.num_blocks - len(self.held(0).union(self.oldest)))
        evicted, self.oldest = self.oldest[: max(0, num_evicted)], self.oldest[max(0, num_evicted) :]
        for block in evicted:
            del self.key_of[block]
        early = self.held(0).union(self.oldest).intersection(taken)
        if early:
            raise KitFailure(
                f"block {early.pop()} was taken for a row although {evicted or 'free blocks'} were to go first: the "
                "least recently used goes first, and of one sequence the last."
            )

    def committed(self, row: Holder, keys: Sequence[bytes]) -> None:
        for key, block in zip(keys, row.tables[0], strict=False):
            self.key_of.setdefault(block, key)

    def given_back(self, group: int, blocks: Sequence[int]) -> None:
        held = self.held(0).union(self.oldest)
        self.oldest += [block for block in blocks if block in self.key_of and block not in held]


def wastes_less_than_a_block(subject: Subject) -> None:
    run_machine(BlockHistories, num_times=2, plugins=subject.alone, classes=subject.classes)


def finds_prefixes_and_evicts_the_oldest(subject: Subject) -> None:
    run_machine(PrefixHistories, num_times=2, plugins=subject.alone, classes=subject.classes)
