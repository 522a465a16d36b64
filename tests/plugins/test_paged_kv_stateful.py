"""Any history of growing, sharing, rejecting, passing on and leaving: no block is lost, nobody writes into others' KV.

Each group of layers sees everything or a window.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from switchgear.core.records import NOT_HELD, Slots
from switchgear.plugins.paged_kv import BlockPool

from .pools import spec_of

Blocks = tuple[tuple[int, ...], ...]
"""Per group, block numbers or NOT_HELD."""


@dataclass
class Line:
    """What one row must read, by position, and how much of it is accepted for good."""

    blocks: list[list[int]]
    """Per group, as the core keeps them: NOT_HELD where they were given back."""
    tokens: list[int] = field(default_factory=list)
    num_accepted: int = 0
    num_granted: int = 0
    """Tokens it ever had room for: what rejected drafts left is kept for the next."""

    def num_passed(self, group: int) -> int:
        return self.blocks[group].count(NOT_HELD)


def held(blocks: list[int] | tuple[int, ...]) -> list[int]:
    return [block for block in blocks if block != NOT_HELD]


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.integers(1, 5),
        windows=st.lists(st.sampled_from([None, None, 1, 2, 5, 9]), min_size=1, max_size=2),
        num_blocks=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        has_equal_groups=st.booleans(),
    )
    def build(
        self, block_size: int, windows: list[int | None], num_blocks: tuple[int, int], has_equal_groups: bool
    ) -> None:
        counts = [num_blocks[0]] * len(windows) if has_equal_groups else list(num_blocks[: len(windows)])
        self.pool = BlockPool(block_size, counts)
        self.spec = spec_of(windows, 0)
        self.block_size, self.num_blocks, self.groups = block_size, counts, range(len(windows))
        self.lines: dict[int, Line] = {}
        self.pins: list[Blocks] = []
        self.kv: dict[tuple[int, int, int], int] = {}
        """(group, block, offset) to what was written there last."""
        self.num_rows = self.num_written = 0

    def holders(self, group: int) -> Counter[int]:
        counts = Counter(block for line in self.lines.values() for block in held(line.blocks[group]))
        counts.update(block for pin in self.pins for block in held(pin[group]))
        return counts

    def num_free(self, group: int) -> int:
        return self.num_blocks[group] - len(self.holders(group))

    def num_unseen(self, group: int, position: int) -> int:
        return self.spec[group].num_unseen(position, self.block_size)

    def pick(self, which: int) -> int:
        return sorted(self.lines)[which % len(self.lines)]

    def new_row(self) -> int:
        self.num_rows += 1
        return self.num_rows

    # -- a step of the engine ---------------------------------------------------------------------------------------

    @rule(num_tokens=st.integers(1, 12))
    def arrive(self, num_tokens: int) -> None:
        self.grow_row(self.new_row(), Line([[] for _ in self.groups]), num_tokens)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99), num_tokens=st.integers(1, 7))
    def grow(self, which: int, num_tokens: int) -> None:
        """Also on top of what is still in flight."""
        row = self.pick(which)
        self.grow_row(row, self.lines[row], num_tokens)

    def grow_row(self, row: int, line: Line, num_tokens: int) -> None:
        start, end = len(line.tokens), len(line.tokens) + num_tokens
        tail = start // self.block_size
        num_new = max(0, -(-end // self.block_size) - len(line.blocks[0]))
        is_written = tail < len(line.blocks[0])
        shared = [g for g in self.groups if is_written and self.holders(g)[line.blocks[g][tail]] > 1]
        num_free = [self.num_free(group) for group in self.groups]
        slots = self.pool.grow(row, end)
        assert (slots is not None) == all(num_new + (g in shared) <= num_free[g] for g in self.groups)
        if slots is None:
            assert [self.num_free(group) for group in self.groups] == num_free
            return
        self.lines[row] = line
        line.num_granted = max(line.num_granted, end)
        assert [len(blocks) for blocks in slots.blocks] == [num_new] * len(self.groups)
        assert [(copy.group, copy.source) for copy in slots.copies] == [(g, line.blocks[g][tail]) for g in shared]
        self.apply(line, slots)
        for position in range(start, end):
            self.num_written += 1
            for group in self.groups:
                self.kv[self.place(line, group, position)] = self.num_written
            line.tokens.append(self.num_written)
        again = self.pool.grow(row, end)
        assert again == Slots(((),) * len(self.groups)), "repeating a call is harmless"

    def apply(self, line: Line, slots: Slots) -> None:
        """Copies are made before anything is written."""
        for table, new in zip(line.blocks, slots.blocks, strict=True):
            table += new
        for copy in slots.copies:
            table = line.blocks[copy.group]
            table[table.index(copy.source)] = copy.target
            for offset in range(self.block_size):
                source = copy.group, copy.source, offset
                if source in self.kv:
                    self.kv[copy.group, copy.target, offset] = self.kv[source]

    def place(self, line: Line, group: int, position: int) -> tuple[int, int, int]:
        block = line.blocks[group][position // self.block_size]
        assert block != NOT_HELD
        return group, block, position % self.block_size

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99), num_rejected=st.integers(0, 6))
    def commit(self, which: int, num_rejected: int) -> None:
        """Drafts may be rejected; what was accepted before never is. What no query sees any more is given back."""
        row = self.pick(which)
        line = self.lines[row]
        line.num_accepted = max(line.num_accepted, len(line.tokens) - num_rejected)
        del line.tokens[line.num_accepted :]
        self.pool.commit(row, line.num_accepted, ())
        num_unseen = tuple(self.num_unseen(group, line.num_accepted - 1) for group in self.groups)
        for _ in range(2):
            self.pool.trim(row, num_unseen)
            for table, count in zip(line.blocks, num_unseen, strict=True):
                table[:count] = [NOT_HELD] * count

    # -- sharing ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(line.num_accepted for line in self.lines.values()))
    @rule(which=st.integers(0, 99), drop=st.integers(0, 3))
    def fork(self, which: int, drop: int) -> None:
        parents = [row for row, line in sorted(self.lines.items()) if line.num_accepted]
        parent = self.lines[parents[which % len(parents)]]
        num_tokens = max(1, parent.num_accepted - drop)
        if any(parent.num_passed(group) > self.num_unseen(group, num_tokens) for group in self.groups):
            return
        num_free, child = self.pool.num_free(), self.new_row()
        slots = self.pool.fork(parents[which % len(parents)], child, num_tokens)
        assert slots is not None and not slots.copies and self.pool.num_free() == num_free
        count = -(-num_tokens // self.block_size)
        assert slots.blocks == tuple(tuple(blocks[:count]) for blocks in parent.blocks)
        tables = [list(blocks) for blocks in slots.blocks]
        self.lines[child] = Line(tables, parent.tokens[:num_tokens], num_tokens, num_tokens)

    @precondition(lambda self: any(line.num_accepted >= self.block_size for line in self.lines.values()))
    @rule(which=st.integers(0, 99), num_blocks=st.integers(1, 4))
    def adopt(self, which: int, num_blocks: int) -> None:
        """Full, accepted blocks, as a prefix cache finds them: in a window group those that come in sight again."""
        givers = [line for _, line in sorted(self.lines.items()) if line.num_accepted >= self.block_size]
        giver = givers[which % len(givers)]
        num_blocks = min(num_blocks, giver.num_accepted // self.block_size)
        num_tokens = num_blocks * self.block_size
        unseen = [self.num_unseen(group, num_tokens) for group in self.groups]
        if any(giver.num_passed(group) > unseen[group] for group in self.groups):
            return
        blocks = tuple((NOT_HELD,) * unseen[g] + tuple(giver.blocks[g][unseen[g] : num_blocks]) for g in self.groups)
        row = self.new_row()
        self.pool.adopt(row, blocks)
        self.lines[row] = Line([list(part) for part in blocks], giver.tokens[:num_tokens], num_tokens, num_tokens)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def pin(self, which: int) -> None:
        blocks = tuple(tuple(table) for table in self.lines[self.pick(which)].blocks)
        self.pool.pin(blocks)
        self.pins.append(blocks)

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 99))
    def unpin(self, which: int) -> None:
        self.pool.unpin(self.pins.pop(which % len(self.pins)))

    # -- leaving ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        row = self.pick(which)
        del self.lines[row]
        self.pool.release(row)
        self.pool.release(row)

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        audit = self.pool.audit()
        assert audit.is_clean and audit.problems == ()
        num_free = [self.num_free(group) for group in self.groups]
        assert (audit.total, audit.free) == (sum(self.num_blocks), sum(num_free))
        assert audit.held == audit.total - audit.free
        most = max(self.num_blocks)
        assert self.pool.num_free() == min(num_free[group] for group in self.groups if self.num_blocks[group] == most)
        for group, blocks in enumerate(self.pool.groups):
            holders = self.holders(group)
            assert blocks.num_references == [holders[block] for block in range(self.num_blocks[group])]

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for line in self.lines.values():
            for number, group in enumerate(self.spec):
                first = 0 if group.window is None else max(0, line.num_accepted - group.window + 1)
                read = [self.kv[self.place(line, number, at)] for at in range(first, len(line.tokens))]
                assert read == line.tokens[first:]

    @invariant()
    def little_is_wasted(self) -> None:
        for line in self.lines.values():
            for table in line.blocks:
                assert 0 <= len(table) * self.block_size - line.num_granted < self.block_size

    @invariant()
    def a_window_holds_a_bounded_number_of_blocks(self) -> None:
        """The window, one more block where its ends lie within blocks, and those of the step."""
        for line in self.lines.values():
            for group, table in zip(self.spec, line.blocks, strict=True):
                if group.window is not None:
                    num_seen = group.window + line.num_granted - line.num_accepted
                    assert len(held(table)) <= -(-num_seen // self.block_size) + 1


PoolMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
test_any_history = PoolMachine.TestCase
