"""Random histories of an allocator: rows grow, share, fork, commit and leave, and nobody reads what is not theirs.

A shadow of the pool remembers what each slot of each group holds. It is written as a worker writes it, so that a block
that is given to two rows, freed too early or copied too late shows as a row that reads another's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ..engine.block_keys import extend_keys, root_key
from ..interfaces import KVAllocator, PrefixMatcher, SharedBlocks, trims_blocks
from ..records import NOT_HELD, Hit, IntArray, Slots
from .failure import KitFailure
from .histories import run_machine, tight_run
from .subject import Plugins, Subject
from .virtual import MAX_MODEL_LEN

WHICH = st.integers(0, 50)
"""One of the living rows, counted round."""
DRAFT = -7
"""Stands in the shadow for a token that was rejected."""


class Holder:
    """One row as the core keeps it: its tokens, its block tables and how much of it is committed."""

    def __init__(self, number: int, tokens: list[int], num_groups: int) -> None:
        self.number = number
        self.tokens = tokens
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Per group; NOT_HELD where the row has passed on."""
        self.num_committed = 0
        self.keys: list[bytes] = []


class KVHistories(RuleBasedStateMachine):
    """What the core may do to an allocator, in any order, with the promises of `KVAllocator` after each."""

    plugins: Plugins
    classes: Sequence[type] = ()
    may_have_windows = True

    @initialize(num_tokens=st.integers(24, 120), has_windows=st.booleans())
    def build(self, num_tokens: int, has_windows: bool) -> None:
        num_groups = 2 if has_windows and self.may_have_windows else 1
        engine = tight_run(self.plugins, self.classes, num_tokens=num_tokens, num_groups=num_groups).engine
        self.allocator: KVAllocator = engine.driver.allocator.value
        self.kv, self.spec = engine.parts.kv, engine.parts.kv_spec
        self.shadows: list[IntArray] = [np.full((group.num_blocks, self.kv.block_size), -1) for group in self.spec]
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
        row = self.living[self.num_rows] = Holder(self.num_rows, tokens, len(self.spec))
        self.num_rows += 1
        return row

    def adopt(self, row: Holder) -> None:
        matcher = self.allocator
        if not isinstance(matcher, PrefixMatcher):
            return
        extend_keys(root_key(tenant="", model="kit"), row.keys, np.array(row.tokens), self.kv.block_size)
        usable = tuple(row.keys[: (len(row.tokens) - 1) // self.kv.block_size])
        hit = matcher.match(usable)
        self.check_hit(usable, hit)
        if not hit.num_tokens:
            return
        if not isinstance(matcher, SharedBlocks):
            raise KitFailure("it finds prefixes, and its blocks cannot be adopted: add `adopt`, `fork`, `pin`, `unpin`")
        matcher.adopt(row.number, hit.blocks)
        row.tables = [[*blocks] for blocks in hit.blocks]
        row.num_committed = hit.num_tokens
        self.check_reads(row)

    def check_hit(self, keys: Sequence[bytes], hit: Hit) -> None:
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
        num_tokens = parent.num_committed - rest
        if any(self.num_passed(parent, group) > self.num_unseen(group, num_tokens) for group in range(len(self.spec))):
            return  # what the row would see first is gone already
        child = self.new_row(parent.tokens[:num_tokens])
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
        for group, table in enumerate(row.tables):
            self.given_back(group, table[::-1])

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
        needed = max(0, -(-(num_tokens + num_drafts) // self.kv.block_size) - len(row.tables[0]))
        slots = self.allocator.grow(row.number, num_tokens + num_drafts)
        self.check_grow(row, needed, slots, before)
        if slots is None:
            if self.books() != before:
                raise KitFailure("grow returned None and changed the books: all or nothing.")
            return False
        self.enter(row, slots)
        values = [*row.tokens[row.num_committed : num_tokens], *[DRAFT] * num_drafts]
        for table, shadow in zip(row.tables, self.shadows, strict=True):
            if len(table) * self.kv.block_size < num_tokens + num_drafts:
                raise KitFailure(f"grow gave {len(table)} blocks for {num_tokens + num_drafts} tokens.")
            for position, value in enumerate(values, start=row.num_committed):
                block, offset = divmod(position, self.kv.block_size)
                shadow[table[block], offset] = value
        row.num_committed = num_tokens
        keys: tuple[bytes, ...] = ()
        if isinstance(self.allocator, PrefixMatcher):
            extend_keys(root_key(tenant="", model="kit"), row.keys, np.array(row.tokens), self.kv.block_size)
            keys = tuple(row.keys[: num_tokens // self.kv.block_size])
        self.allocator.commit(row.number, num_tokens, keys)
        self.committed(row, keys)
        self.trim(row)
        return True

    def trim(self, row: Holder) -> None:
        """As the core does, up to what the last computed token saw."""
        num_blocks = tuple(self.num_unseen(group, row.num_committed - 1) for group in range(len(self.spec)))
        if not trims_blocks(self.allocator) or not any(num_blocks):
            return
        self.allocator.trim(row.number, num_blocks)
        for group, (table, count) in enumerate(zip(row.tables, num_blocks, strict=True)):
            passed, table[:count] = table[:count], [NOT_HELD] * count
            self.given_back(group, passed[::-1])

    def num_unseen(self, group: int, position: int) -> int:
        return self.spec[group].num_unseen(position, self.kv.block_size)

    def num_passed(self, row: Holder, group: int) -> int:
        return row.tables[group].count(NOT_HELD)

    def check_grow(self, row: Holder, needed: int, slots: Slots | None, before: tuple[int, ...]) -> None:
        """Narrowed by claims about when there is room. needed: new blocks; before: the books when it was asked."""

    def committed(self, row: Holder, keys: Sequence[bytes]) -> None:
        """Followed by claims about what is cached."""

    def enter(self, row: Holder, slots: Slots) -> None:
        for table, new in zip(row.tables, slots.blocks, strict=True):
            table += new
        for copy in slots.copies:
            shadow, table = self.shadows[copy.group], row.tables[copy.group]
            shadow[copy.target] = shadow[copy.source]
            table[:] = [copy.target if block == copy.source else block for block in table]
            self.given_back(copy.group, [copy.source])

    def given_back(self, group: int, blocks: Sequence[int]) -> None:
        """Followed by claims about what stays cached: a row holds these no longer, in this order."""

    def held(self, group: int) -> set[int]:
        return {block for row in self.living.values() for block in row.tables[group] if block != NOT_HELD}

    def books(self) -> tuple[int, ...]:
        audit = self.allocator.audit()
        return audit.free, audit.held, audit.evictable, self.allocator.num_free()

    def check_reads(self, row: Holder) -> None:
        """In each group the row's next query sees the row's own tokens."""
        for number, (group, table, shadow) in enumerate(zip(self.spec, row.tables, self.shadows, strict=True)):
            first = 0 if group.window is None else max(0, row.num_committed - group.window + 1)
            for position in range(first, row.num_committed):
                block, offset = divmod(position, self.kv.block_size)
                if table[block] == NOT_HELD or shadow[table[block], offset] != row.tokens[position]:
                    raise KitFailure(
                        f"row {row.number} reads another's token at position {position}, in block {table[block]} of "
                        f"group {number}: the block was shared, reused, taken back or not copied."
                    )

    def check(self) -> None:
        """After every rule: everybody reads their own tokens, and the books balance."""
        for row in self.living.values():
            self.check_reads(row)
        audit = self.allocator.audit()
        if not audit.is_clean:
            raise KitFailure(f"the books do not balance: {audit}.")
        num_held = sum(len(self.held(group)) for group in range(len(self.spec)))
        if audit.held != num_held:
            raise KitFailure(f"audit counts {audit.held} held blocks, the rows' tables hold {num_held}.")

    def teardown(self) -> None:
        if hasattr(self, "living"):
            for row in list(self.living.values()):
                self.allocator.release(row.number)
            audit = self.allocator.audit()
            if audit.held or self.allocator.num_free() != self.kv.num_blocks:
                raise KitFailure(f"leak: no row lives, and the books say {audit}.")


def shares_no_slot(subject: Subject) -> None:
    run_machine(KVHistories, num_times=2, plugins=subject.alone, classes=subject.classes)
