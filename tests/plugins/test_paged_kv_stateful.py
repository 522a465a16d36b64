"""Any history of growing, sharing, rejecting and leaving: no block is lost, nobody writes into the KV of another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from switchgear.core.records import Slots
from switchgear.plugins.paged_kv import BlockPool


@dataclass
class Line:
    """What one row must read, by position, and how much of it is accepted for good."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_accepted: int = 0
    num_granted: int = 0
    """Tokens it ever had room for: what rejected drafts left is kept for the next."""


class PoolMachine(RuleBasedStateMachine):
    @initialize(block_size=st.integers(1, 5), num_blocks=st.integers(1, 12), num_groups=st.integers(1, 2))
    def build(self, block_size: int, num_blocks: int, num_groups: int) -> None:
        self.pool = BlockPool(num_groups, block_size, num_blocks)
        self.block_size, self.num_blocks, self.num_groups = block_size, num_blocks, num_groups
        self.lines: dict[int, Line] = {}
        self.pins: list[tuple[int, ...]] = []
        self.kv: dict[tuple[int, int], int] = {}
        """(block, offset) to what was written there last."""
        self.num_rows = self.num_written = 0

    def holders(self) -> Counter[int]:
        counts = Counter(block for line in self.lines.values() for block in line.blocks)
        counts.update(block for pin in self.pins for block in pin)
        return counts

    def pick(self, which: int) -> int:
        return sorted(self.lines)[which % len(self.lines)]

    def new_row(self) -> int:
        self.num_rows += 1
        return self.num_rows

    # -- a step of the engine ---------------------------------------------------------------------------------------

    @rule(num_tokens=st.integers(1, 12))
    def arrive(self, num_tokens: int) -> None:
        self.grow_row(self.new_row(), Line(), num_tokens)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99), num_tokens=st.integers(1, 7))
    def grow(self, which: int, num_tokens: int) -> None:
        """Also on top of what is still in flight."""
        row = self.pick(which)
        self.grow_row(row, self.lines[row], num_tokens)

    def grow_row(self, row: int, line: Line, num_tokens: int) -> None:
        start, end = len(line.tokens), len(line.tokens) + num_tokens
        holders = self.holders()
        tail = start // self.block_size
        is_shared = tail < len(line.blocks) and holders[line.blocks[tail]] > 1
        num_needed = max(0, -(-end // self.block_size) - len(line.blocks)) + is_shared
        num_free = self.pool.num_free()
        slots = self.pool.grow(row, end)
        assert (slots is not None) == (num_needed <= num_free)
        if slots is None:
            assert self.pool.num_free() == num_free
            return
        assert self.pool.num_free() == num_free - num_needed
        self.lines[row] = line
        line.num_granted = max(line.num_granted, end)
        assert len(slots.copies) == is_shared * self.num_groups
        if is_shared:
            assert {(copy.source, copy.group) for copy in slots.copies} == {
                (line.blocks[tail], group) for group in range(self.num_groups)
            }
        self.apply(line, slots)
        for position in range(start, end):
            self.num_written += 1
            self.kv[self.place(line, position)] = self.num_written
            line.tokens.append(self.num_written)
        again = self.pool.grow(row, end)
        assert again == Slots(((),) * self.num_groups), "repeating a call is harmless"

    def apply(self, line: Line, slots: Slots) -> None:
        """Every group is given the same blocks; copies are made before anything is written."""
        assert len(set(slots.blocks)) == 1 and len(slots.blocks) == self.num_groups
        line.blocks += slots.blocks[0]
        for copy in slots.copies[:1]:
            line.blocks[line.blocks.index(copy.source)] = copy.target
            for offset in range(self.block_size):
                if (copy.source, offset) in self.kv:
                    self.kv[copy.target, offset] = self.kv[copy.source, offset]

    def place(self, line: Line, position: int) -> tuple[int, int]:
        return line.blocks[position // self.block_size], position % self.block_size

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99), num_rejected=st.integers(0, 6))
    def commit(self, which: int, num_rejected: int) -> None:
        """Drafts may be rejected; what was accepted before never is."""
        row = self.pick(which)
        line = self.lines[row]
        line.num_accepted = max(line.num_accepted, len(line.tokens) - num_rejected)
        del line.tokens[line.num_accepted :]
        self.pool.commit(row, line.num_accepted, ())

    # -- sharing ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(line.num_accepted for line in self.lines.values()))
    @rule(which=st.integers(0, 99), drop=st.integers(0, 3))
    def fork(self, which: int, drop: int) -> None:
        parents = [row for row, line in sorted(self.lines.items()) if line.num_accepted]
        parent = self.lines[parents[which % len(parents)]]
        num_tokens = max(1, parent.num_accepted - drop)
        num_free, child = self.pool.num_free(), self.new_row()
        slots = self.pool.fork(parents[which % len(parents)], child, num_tokens)
        assert slots is not None and not slots.copies and self.pool.num_free() == num_free
        assert slots.blocks[0] == tuple(parent.blocks[: -(-num_tokens // self.block_size)])
        self.lines[child] = Line(parent.tokens[:num_tokens], list(slots.blocks[0]), num_tokens, num_tokens)

    @precondition(lambda self: any(line.num_accepted >= self.block_size for line in self.lines.values()))
    @rule(which=st.integers(0, 99), num_blocks=st.integers(1, 4))
    def adopt(self, which: int, num_blocks: int) -> None:
        """Full, accepted blocks, as a prefix cache finds them."""
        givers = [line for _, line in sorted(self.lines.items()) if line.num_accepted >= self.block_size]
        giver = givers[which % len(givers)]
        blocks = tuple(giver.blocks[: min(num_blocks, giver.num_accepted // self.block_size)])
        row, num_tokens = self.new_row(), len(blocks) * self.block_size
        self.pool.adopt(row, (blocks,) * self.num_groups)
        self.lines[row] = Line(giver.tokens[:num_tokens], list(blocks), num_tokens, num_tokens)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def pin(self, which: int) -> None:
        blocks = tuple(self.lines[self.pick(which)].blocks)
        self.pool.pin((blocks,) * self.num_groups)
        self.pins.append(blocks)

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 99))
    def unpin(self, which: int) -> None:
        self.pool.unpin((self.pins.pop(which % len(self.pins)),) * self.num_groups)

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
        audit, holders = self.pool.audit(), self.holders()
        assert audit.is_clean and audit.problems == ()
        assert (audit.total, audit.held, audit.free) == (
            self.num_blocks,
            len(holders),
            self.num_blocks - len(holders),
        )
        assert self.pool.num_references == [holders[block] for block in range(self.num_blocks)]

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for line in self.lines.values():
            read = [self.kv[self.place(line, position)] for position in range(len(line.tokens))]
            assert read == line.tokens

    @invariant()
    def little_is_wasted(self) -> None:
        for line in self.lines.values():
            assert 0 <= len(line.blocks) * self.block_size - line.num_granted < self.block_size


PoolMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
test_any_history = PoolMachine.TestCase
