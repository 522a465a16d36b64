"""Any history against a simple model: hits are what the model has, never the KV of another text, and nothing is lost.

A text is a string; each letter stands for one full block. A block's key is the text up to its end, and so is what KV
it must hold.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from switchgear.core.records import Slots
from switchgear.plugins.paged_kv import BlockPool
from switchgear.plugins.prefix_cache import CachedPool


@dataclass
class Line:
    """One row."""

    text: str
    num_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    is_in_flight: bool = True


@dataclass
class Model:
    """What is cached: published blocks by key, who holds what, and the order in which the idle ones go."""

    published: dict[str, list[int]] = field(default_factory=dict)
    holders: Counter[int] = field(default_factory=Counter)
    idle: list[int] = field(default_factory=list)

    def key_of(self, block: int) -> str | None:
        return next((key for key, blocks in self.published.items() if block in blocks), None)

    def leading(self, text: str, num_blocks: int) -> int:
        keys = [text[: end + 1] for end in range(num_blocks)]
        return len(list(takewhile(self.published.__contains__, keys)))

    def hold(self, block: int) -> None:
        self.holders[block] += 1
        if block in self.idle:
            self.idle.remove(block)

    def let_go(self, block: int) -> None:
        self.holders[block] -= 1
        key = self.key_of(block)
        if self.holders[block] or key is None:
            return
        if len(self.published[key]) > 1:
            self.drop(block)
        else:
            self.idle.append(block)

    def publish(self, key: str, block: int) -> None:
        for twin in [twin for twin in self.published.get(key, []) if twin in self.idle]:
            self.idle.remove(twin)
            self.drop(twin)
        self.published.setdefault(key, []).append(block)

    def drop(self, block: int) -> None:
        key = self.key_of(block)
        assert key is not None
        self.published[key].remove(block)
        if not self.published[key]:
            del self.published[key]

    def evict(self, count: int) -> None:
        for block in self.idle[:count]:
            self.drop(block)
        del self.idle[:count]

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self.published.values()))


TEXTS = st.text("ab", min_size=1, max_size=6)


class CacheMachine(RuleBasedStateMachine):
    @initialize(block_size=st.integers(1, 4), num_blocks=st.integers(2, 14), num_groups=st.integers(1, 2))
    def build(self, block_size: int, num_blocks: int, num_groups: int) -> None:
        self.pool = BlockPool(num_groups, block_size, num_blocks)
        self.cache = CachedPool(self.pool, num_groups, block_size, "tenant")
        self.block_size, self.num_blocks, self.num_groups = block_size, num_blocks, num_groups
        self.model = Model()
        self.lines: dict[int, Line] = {}
        self.pins: list[tuple[int, ...]] = []
        self.kv: dict[tuple[int, int], str] = {}
        self.num_rows = self.num_queried = self.num_hit = self.num_evicted = 0

    def pick(self, which: int, is_in_flight: bool | None = None) -> int:
        rows = [row for row, line in sorted(self.lines.items()) if is_in_flight in (None, line.is_in_flight)]
        return rows[which % len(rows)]

    def has(self, is_in_flight: bool) -> bool:
        return any(line.is_in_flight is is_in_flight for line in self.lines.values())

    def keys(self, text: str, num_blocks: int) -> tuple[bytes, ...]:
        return tuple(text[: end + 1].encode() for end in range(num_blocks))

    def new_row(self) -> int:
        self.num_rows += 1
        return self.num_rows

    # -- a step of the engine ---------------------------------------------------------------------------------------

    @rule(
        text=TEXTS,
        missing=st.integers(0, 3),
        looks=st.sampled_from([True, True, True, False]),
        commits=st.booleans(),
    )
    def arrive(self, text: str, missing: int, looks: bool, commits: bool) -> None:
        row, line = self.new_row(), Line(text)
        num_tokens = max(1, len(text) * self.block_size - missing)
        num_asked = (num_tokens - 1) // self.block_size if looks else 0
        if looks:
            hit = self.cache.match(self.keys(text, num_asked))
            line.blocks = list(hit.blocks[0])
            assert len(set(hit.blocks)) == 1 and len(hit.blocks) == self.num_groups
            assert len(line.blocks) == self.model.leading(text, num_asked)
            assert hit.num_tokens == len(line.blocks) * self.block_size
            line.num_tokens = hit.num_tokens
            if hit.num_tokens:
                self.cache.adopt(row, hit.blocks)
                for block in line.blocks:
                    self.model.hold(block)
        num_found = len(line.blocks)
        if self.grow_row(row, line, num_tokens):
            self.num_queried += num_asked
            self.num_hit += num_found
            if commits:
                self.commit_row(row)
        else:
            self.leave(row, line)

    @precondition(lambda self: self.has(is_in_flight=False))
    @rule(which=st.integers(0, 99), num_tokens=st.integers(1, 6), commits=st.booleans())
    def grow(self, which: int, num_tokens: int, commits: bool) -> None:
        row = self.pick(which, is_in_flight=False)
        line = self.lines[row]
        end = min(line.num_tokens + num_tokens, len(line.text) * self.block_size)
        if end > line.num_tokens and self.grow_row(row, line, end) and commits:
            self.commit_row(row)

    def grow_row(self, row: int, line: Line, end: int) -> bool:
        start = line.num_tokens
        tail = start // self.block_size
        is_shared = tail < len(line.blocks) and self.num_references(line.blocks[tail]) > 1
        num_new = max(0, -(-end // self.block_size) - len(line.blocks))
        num_free, num_idle = self.pool.num_free(), len(self.model.idle)
        slots = self.cache.grow(row, end)
        assert (slots is not None) == (num_new + is_shared <= num_free + num_idle)
        if slots is None:
            return False
        self.evicted(max(0, num_new + is_shared - num_free))
        self.lines[row] = line
        self.apply(line, slots)
        for position in range(start, end):
            self.kv[self.place(line, position)] = self.written(line, position)
        line.num_tokens, line.is_in_flight = end, True
        return True

    def evicted(self, count: int) -> None:
        self.model.evict(count)
        self.num_evicted += count

    def apply(self, line: Line, slots: Slots) -> None:
        line.blocks += slots.blocks[0]
        for block in slots.blocks[0]:
            self.model.hold(block)
        for copy in slots.copies[:1]:
            line.blocks[line.blocks.index(copy.source)] = copy.target
            self.model.hold(copy.target)
            self.model.let_go(copy.source)
            for offset in range(self.block_size):
                self.kv[copy.target, offset] = self.kv.get((copy.source, offset), "")

    def place(self, line: Line, position: int) -> tuple[int, int]:
        return line.blocks[position // self.block_size], position % self.block_size

    def written(self, line: Line, position: int) -> str:
        return line.text[: position // self.block_size + 1]

    @precondition(lambda self: self.has(is_in_flight=True))
    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        self.commit_row(self.pick(which, is_in_flight=True))

    def commit_row(self, row: int) -> None:
        line = self.lines[row]
        line.is_in_flight = False
        num_full = line.num_tokens // self.block_size
        self.cache.commit(row, line.num_tokens, self.keys(line.text, num_full))
        for index, block in enumerate(line.blocks[:num_full]):
            if self.model.key_of(block) is None:
                self.model.publish(line.text[: index + 1], block)

    # -- sharing and leaving ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.has(is_in_flight=False))
    @rule(which=st.integers(0, 99), drop=st.integers(0, 3))
    def fork(self, which: int, drop: int) -> None:
        parent = self.pick(which, is_in_flight=False)
        line = self.lines[parent]
        num_tokens, child = max(1, line.num_tokens - drop), self.new_row()
        slots = self.cache.fork(parent, child, num_tokens)
        assert slots is not None and not slots.copies
        self.lines[child] = Line(line.text, num_tokens, list(slots.blocks[0]), is_in_flight=False)
        for block in slots.blocks[0]:
            self.model.hold(block)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        row = self.pick(which)
        self.leave(row, self.lines.pop(row))

    def leave(self, row: int, line: Line) -> None:
        self.cache.release(row)
        self.cache.release(row)
        for block in reversed(line.blocks):
            self.model.let_go(block)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def pin(self, which: int) -> None:
        blocks = tuple(self.lines[self.pick(which)].blocks)
        self.cache.pin((blocks,) * self.num_groups)
        self.pins.append(blocks)
        for block in blocks:
            self.model.hold(block)

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 99))
    def unpin(self, which: int) -> None:
        blocks = self.pins.pop(which % len(self.pins))
        self.cache.unpin((blocks,) * self.num_groups)
        for block in reversed(blocks):
            self.model.let_go(block)

    @rule(really=st.integers(0, 9))
    def forget(self, really: int) -> None:
        if really:
            return  # or there would seldom be anything to find
        assert self.cache.forget() == len(self.model.idle)
        self.model.evict(len(self.model.idle))

    # -- what always holds ------------------------------------------------------------------------------------------

    def num_references(self, block: int) -> int:
        return self.model.holders[block] + (self.model.key_of(block) is not None)

    @invariant()
    def books_balance(self) -> None:
        audit = self.cache.audit()
        assert audit.is_clean and audit.problems == ()
        num_held = sum(count > 0 for count in self.model.holders.values())
        num_idle = len(self.model.idle)
        assert (audit.total, audit.held, audit.evictable) == (self.num_blocks, num_held, num_idle)
        assert self.cache.num_free() == self.num_blocks - num_held
        assert self.cache.num_held() == num_held
        assert self.pool.num_references == [self.num_references(block) for block in range(self.num_blocks)]

    @invariant()
    def the_cache_is_what_the_model_has(self) -> None:
        assert list(self.cache.evictable) == self.model.idle
        published = {key.encode(): blocks for key, blocks in self.model.published.items()}
        assert self.cache.blocks_of == published and len(self.cache.key_of) == self.model.num_blocks
        counted = self.cache.num_queried, self.cache.num_hit, self.cache.num_evicted
        assert counted == (self.num_queried, self.num_hit, self.num_evicted)

    @invariant()
    def a_key_leads_to_the_kv_of_its_text(self) -> None:
        for key, blocks in self.model.published.items():
            for block in blocks:
                assert {self.kv[block, offset] for offset in range(self.block_size)} == {key}

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for line in self.lines.values():
            for position in range(line.num_tokens):
                assert self.kv[self.place(line, position)] == self.written(line, position)

    @invariant()
    def what_is_idle_can_be_found_from_the_front(self) -> None:
        """Tail first: the blocks before an idle one are idle as well and go later, or in use."""
        place = {block: index for index, block in enumerate(self.model.idle)}
        for block, index in place.items():
            key = self.model.key_of(block)
            assert key is not None
            for end in range(1, len(key)):
                before = self.model.published.get(key[:end], [])
                assert any(place.get(other, index + 1) > index for other in before)


CacheMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
test_any_history = CacheMachine.TestCase
