"""What small blocks and prefix caches claim, checked on random histories of an allocator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..records import Slots
from .failure import KitFailure
from .histories import run_machine
from .kv_histories import Holder, KVHistories
from .subject import Subject


class BlockHistories(KVHistories):
    """Small blocks: room wherever it lies, and no more than asked for."""

    def check_grow(self, row: Holder, needed: int, slots: Slots | None, before: tuple[int, ...]) -> None:
        num_free = before[-1]
        place = row.num_committed // self.kv.block_size
        others = {block for other in self.living.values() if other is not row for block in other.table}
        is_shared = place < len(row.table) and row.table[place] in others
        if slots is None and needed + is_shared <= num_free:
            raise KitFailure(f"no room for {needed} blocks although {num_free} are free: external fragmentation.")
        if slots is not None and len(slots.blocks[0]) != needed:
            raise KitFailure(f"{len(slots.blocks[0])} blocks were given where {needed} are needed: waste.")
        if slots is not None and len(slots.copies) > 1:
            raise KitFailure(f"{len(slots.copies)} blocks are copied: only the last, partly filled one is written.")


class PrefixHistories(KVHistories):
    """A model of the cache: which blocks hold a key, and in which order those without a row go.

    Prompts end within a block, so that nobody computes a block that is cached: what becomes of such twins is open.
    """

    def begin(self) -> None:
        self.key_of: dict[int, bytes] = {}
        self.oldest: list[int] = []

    def prompt_length(self, length: int) -> int:
        return length + (length % self.kv.block_size == 0)

    def check_hit(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
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
        num_evicted = len(taken) - (self.kv.num_blocks - len(self.held().union(self.oldest)))
        evicted, self.oldest = self.oldest[: max(0, num_evicted)], self.oldest[max(0, num_evicted) :]
        for block in evicted:
            del self.key_of[block]
        early = self.held().union(self.oldest).intersection(taken)
        if early:
            raise KitFailure(
                f"block {early.pop()} was taken for a row although {evicted or 'free blocks'} were to go first: the "
                "least recently used goes first, and of one sequence the last."
            )

    def committed(self, row: Holder, keys: Sequence[bytes]) -> None:
        for key, block in zip(keys, row.table, strict=False):
            self.key_of.setdefault(block, key)

    def given_back(self, blocks: Sequence[int]) -> None:
        held = self.held().union(self.oldest)
        self.oldest += [block for block in blocks if block in self.key_of and block not in held]


def wastes_less_than_a_block(subject: Subject) -> None:
    run_machine(BlockHistories, num_times=2, plugins=subject.alone, classes=subject.classes)


def finds_prefixes_and_evicts_the_oldest(subject: Subject) -> None:
    run_machine(PrefixHistories, num_times=2, plugins=subject.alone, classes=subject.classes)
