"""Random histories of an allocator: rows grow, share, fork, commit and leave, and nobody reads what is not theirs.

A shadow of the pool remembers what each slot holds. It is written as a worker writes it, so that a block that is given
to two rows, freed too early or copied too late shows as a row that reads another's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ..engine.block_keys import extend_keys, root_key
from ..interfaces import KVAllocator, PrefixMatcher, SharedBlocks
from ..records import NO_ROWS, IntArray, Slots
from .failure import KitFailure
from .histories import run_machine, tight_run
from .subject import Plugins, Subject
from .virtual import MAX_MODEL_LEN

WHICH = st.integers(0, 50)
"""One of the living rows, counted round."""
DRAFT = -7
"""Stands in the shadow for a token that was rejected."""


class Holder:
    """One row as the core keeps it: its tokens, its block table and how much of it is committed."""

    def __init__(self, number: int, tokens: list[int]) -> None:
        self.number = number
        self.tokens = tokens
        self.table: list[int] = []
        self.num_committed = 0
        self.keys: list[bytes] = []


class KVHistories(RuleBasedStateMachine):
    """What the core may do to an allocator, in any order, with the promises of `KVAllocator` after each."""

    plugins: Plugins
    classes: Sequence[type] = ()

    @initialize(num_tokens=st.integers(24, 120))
    def build(self, num_tokens: int) -> None:
        engine = tight_run(self.plugins, self.classes, num_tokens=num_tokens).engine
        self.allocator: KVAllocator = engine.driver.allocator.value
        self.kv = engine.parts.kv
        self.shadow: IntArray = np.full((self.kv.num_blocks, self.kv.block_size), -1)
        self.living: dict[int, Holder] = {}
        self.num_rows = 0
        self.begin()

    def begin(self) -> None:
        """Where claims begin their own books."""

    # -- what the core does -----------------------------------------------------------------------------------------

    @rule(
        lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5),
        start=st.integers(0, 4),
        num_drafts=st.integers(0, 3),
    )
    def admit(self, lengths: list[int], start: int, num_drafts: int) -> None:
        """Rows come in on what is cached of their prompts, and compute the rest."""
        for length in lengths:
            self.admit_one(length, start, num_drafts)

    def admit_one(self, length: int, start: int, num_drafts: int = 0) -> bool:
        row = self.new_row([1000 * start + index for index in range(self.prompt_length(length))])
        self.adopt(row)
        has_room = self.compute(row, len(row.tokens), num_drafts)
        if not has_room:
            self.leave(row)
        self.check()
        return has_room

    @rule(length=st.integers(5, 20), starts=st.lists(st.integers(0, 4), min_size=2, max_size=8))
    def turn_over(self, length: int, starts: list[int]) -> None:
        """Prompts come one after the other, and who came first makes room."""
        for start in starts:
            while not self.admit_one(length, start) and self.living:
                self.finish([0])

    def some_row(self, which: int) -> Holder | None:
        return list(self.living.values())[which % len(self.living)] if self.living else None

    def prompt_length(self, length: int) -> int:
        """Narrowed by claims that hold for some prompts."""
        return length

    def new_row(self, tokens: list[int]) -> Holder:
        row = self.living[self.num_rows] = Holder(self.num_rows, tokens)
        self.num_rows += 1
        return row

    def adopt(self, row: Holder) -> None:
        matcher = self.allocator
        if not isinstance(matcher, PrefixMatcher):
            return
        extend_keys(root_key(tenant="", model="kit"), row.keys, np.array(row.tokens), self.kv.block_size)
        usable = tuple(row.keys[: (len(row.tokens) - 1) // self.kv.block_size])
        hit = matcher.match(usable)
        self.check_hit(usable, [*hit.blocks[0]])
        if not hit.num_tokens:
            return
        if not isinstance(matcher, SharedBlocks):
            raise KitFailure("it finds prefixes, and its blocks cannot be adopted: add `adopt`, `fork`, `pin`, `unpin`")
        matcher.adopt(row.number, hit.blocks)
        row.table = [*hit.blocks[0]]
        row.num_committed = hit.num_tokens
        self.check_reads(row)

    def check_hit(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Narrowed by claims about what has to be found."""

    @rule(which=WHICH, num_new=st.integers(1, 6), num_drafts=st.integers(0, 3))
    def extend(self, which: int, num_new: int, num_drafts: int) -> None:
        """A living row computes tokens that it was given or has sampled, and drafts that are rejected."""
        row = self.some_row(which)
        if row is not None:
            self.extend_row(row, num_new, num_drafts)

    def extend_row(self, row: Holder, num_new: int, num_drafts: int = 0) -> None:
        if len(row.tokens) + num_new + num_drafts > MAX_MODEL_LEN:
            return
        row.tokens += [1000 * (row.number + 10) + len(row.tokens) + index for index in range(num_new)]
        if not self.compute(row, len(row.tokens), num_drafts):
            del row.tokens[-num_new:]
        self.check()

    @rule(which=WHICH, rest=st.integers(0, 2), num_new=st.integers(1, 3))
    def fork(self, which: int, rest: int, num_new: int) -> None:
        """A row shares what a parent has computed, but for its last tokens; then both go their own way."""
        parent = self.some_row(which)
        if parent is None or parent.num_committed <= rest or not isinstance(self.allocator, SharedBlocks):
            return
        child = self.new_row(parent.tokens[: parent.num_committed - rest])
        slots = self.allocator.fork(parent.number, child.number, len(child.tokens))
        if slots is None:
            del self.living[child.number]
            return
        self.enter(child, slots)
        child.num_committed = len(child.tokens)
        self.check()
        for row in (child, parent):
            self.extend_row(row, num_new)

    @rule(leaving=st.lists(WHICH, min_size=1, max_size=4))
    def finish(self, leaving: list[int]) -> None:
        """Rows leave, and leaving twice does nothing."""
        for which in leaving:
            row = self.some_row(which)
            if row is not None:
                self.leave(row)
                self.allocator.release(row.number)
                self.check()

    def leave(self, row: Holder) -> None:
        self.allocator.release(row.number)
        del self.living[row.number]
        self.given_back(row.table[::-1])

    @rule(which=WHICH)
    def grow_for_nothing(self, which: int) -> None:
        """Room that is there already is given again, and nothing changes."""
        row = self.some_row(which)
        if row is None:
            return
        before = self.books()
        slots = self.allocator.grow(row.number, row.num_committed)
        if slots is None or slots.blocks[0] or self.books() != before:
            raise KitFailure(f"grow for {row.num_committed} tokens that have room returned {slots} or changed books.")

    # -- what comes of it -------------------------------------------------------------------------------------------

    def compute(self, row: Holder, num_tokens: int, num_drafts: int) -> bool:
        """grow, write, commit; False when there is no room, and then nothing has changed."""
        before = self.books()
        needed = max(0, -(-(num_tokens + num_drafts) // self.kv.block_size) - len(row.table))
        slots = self.allocator.grow(row.number, num_tokens + num_drafts)
        self.check_grow(row, needed, slots, before)
        if slots is None:
            if self.books() != before:
                raise KitFailure("grow returned None and changed the books: all or nothing.")
            return False
        self.enter(row, slots)
        if len(row.table) * self.kv.block_size < num_tokens + num_drafts:
            raise KitFailure(f"grow gave {len(row.table)} blocks for {num_tokens + num_drafts} tokens.")
        values = [*row.tokens[row.num_committed : num_tokens], *[DRAFT] * num_drafts]
        for position, value in enumerate(values, start=row.num_committed):
            block, offset = divmod(position, self.kv.block_size)
            self.shadow[row.table[block], offset] = value
        row.num_committed = num_tokens
        keys: tuple[bytes, ...] = ()
        if isinstance(self.allocator, PrefixMatcher):
            extend_keys(root_key(tenant="", model="kit"), row.keys, np.array(row.tokens), self.kv.block_size)
            keys = tuple(row.keys[: num_tokens // self.kv.block_size])
        self.allocator.commit(row.number, num_tokens, keys)
        self.committed(row, keys)
        return True

    def check_grow(self, row: Holder, needed: int, slots: Slots | None, before: tuple[int, ...]) -> None:
        """Narrowed by claims about when there is room. needed: new blocks; before: the books when it was asked."""

    def committed(self, row: Holder, keys: Sequence[bytes]) -> None:
        """Followed by claims about what is cached."""

    def enter(self, row: Holder, slots: Slots) -> None:
        row.table += slots.blocks[0]
        for copy in slots.copies:
            self.shadow[copy.target] = self.shadow[copy.source]
            row.table = [copy.target if block == copy.source else block for block in row.table]
            self.given_back([copy.source])

    def given_back(self, blocks: Sequence[int]) -> None:
        """Followed by claims about what stays cached: a row holds these no longer, in this order."""

    def held(self) -> set[int]:
        return {block for row in self.living.values() for block in row.table}

    def books(self) -> tuple[int, ...]:
        audit = self.allocator.audit()
        return audit.free, audit.held, audit.evictable, self.allocator.num_free()

    def check_reads(self, row: Holder) -> None:
        flat = self.shadow[row.table].reshape(-1)[: row.num_committed] if row.table else NO_ROWS
        wrong = np.flatnonzero(flat != np.array(row.tokens[: row.num_committed]))
        if len(wrong):
            place = int(wrong[0])
            raise KitFailure(
                f"row {row.number} reads another's token at position {place}, in block "
                f"{row.table[place // self.kv.block_size]}: the block was shared, reused or not copied."
            )

    def check(self) -> None:
        """After every rule: everybody reads their own tokens, and the books balance."""
        for row in self.living.values():
            self.check_reads(row)
        audit = self.allocator.audit()
        if not audit.is_clean:
            raise KitFailure(f"the books do not balance: {audit}.")
        if audit.held != len(self.held()):
            raise KitFailure(f"audit counts {audit.held} held blocks, the rows' tables hold {len(self.held())}.")

    def teardown(self) -> None:
        if hasattr(self, "living"):
            for row in list(self.living.values()):
                self.allocator.release(row.number)
            audit = self.allocator.audit()
            if audit.held or self.allocator.num_free() != self.kv.num_blocks:
                raise KitFailure(f"leak: no row lives, and the books say {audit}.")


def shares_no_slot(subject: Subject) -> None:
    run_machine(KVHistories, num_times=2, plugins=subject.alone, classes=subject.classes)
