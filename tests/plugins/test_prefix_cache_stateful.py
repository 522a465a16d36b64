"""Any history against a simple model: hits are what the model has, never the KV of another text, and nothing is lost.

A text is a string; each letter stands for one full block. A block's key is the text up to its end, and so is what KV
it must hold. Each group of layers sees everything or a window, and has a model of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from switchgear.core.records import NOT_HELD, Slots
from switchgear.plugins.paged_kv import BlockPool
from switchgear.plugins.prefix_cache import CachedPool

from .pools import spec_of

Blocks = tuple[tuple[int, ...], ...]
"""Per group, block numbers or NOT_HELD."""


@dataclass
class Line:
    """One row."""

    text: str
    blocks: list[list[int]]
    """Per group, NOT_HELD where they were given back or never taken."""
    num_tokens: int = 0
    num_committed: int = 0
    is_in_flight: bool = True


def held(blocks: list[int] | tuple[int, ...]) -> list[int]:
    return [block for block in blocks if block != NOT_HELD]


@dataclass
class Model:
    """What is cached in one group: published blocks by key, who holds what, and in which order the idle ones go."""

    published: dict[str, list[int]] = field(default_factory=dict)
    holders: Counter[int] = field(default_factory=Counter)
    idle: list[int] = field(default_factory=list)

    def key_of(self, block: int) -> str | None:
        return next((key for key, blocks in self.published.items() if block in blocks), None)

    def serves(self, keys: list[str]) -> bool:
        return all(key in self.published for key in keys)

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
    @initialize(
        block_size=st.integers(1, 4),
        windows=st.lists(st.sampled_from([None, None, 1, 3, 6]), min_size=1, max_size=3),
        num_blocks=st.integers(2, 14),
    )
    def build(self, block_size: int, windows: list[int | None], num_blocks: int) -> None:
        self.pool = BlockPool(block_size, [num_blocks] * len(windows))
        self.spec, self.groups = spec_of(windows, num_blocks), range(len(windows))
        self.cache = CachedPool(self.pool, self.spec, block_size, "tenant")
        self.block_size, self.num_blocks = block_size, num_blocks
        self.models = [Model() for _ in windows]
        self.lines: dict[int, Line] = {}
        self.pins: list[Blocks] = []
        self.kv: dict[tuple[int, int, int], str] = {}
        """(group, block, offset) to what was written there last."""
        self.num_rows = self.num_queried = self.num_hit = 0
        self.num_evicted = [0] * len(windows)

    def pick(self, which: int, is_in_flight: bool | None = None) -> int:
        rows = [row for row, line in sorted(self.lines.items()) if is_in_flight in (None, line.is_in_flight)]
        return rows[which % len(rows)]

    def has(self, is_in_flight: bool) -> bool:
        return any(line.is_in_flight is is_in_flight for line in self.lines.values())

    def keys(self, text: str, num_blocks: int) -> list[str]:
        return [text[: end + 1] for end in range(num_blocks)]

    def num_unseen(self, group: int, position: int) -> int:
        return self.spec[group].num_unseen(position, self.block_size)

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
        row, line = self.new_row(), Line(text, [[] for _ in self.groups])
        num_tokens = max(1, len(text) * self.block_size - missing)
        num_asked = (num_tokens - 1) // self.block_size if looks else 0
        if looks:
            self.look_up(row, line, num_asked)
        num_found = len(line.blocks[0])
        if self.grow_row(row, line, num_tokens):
            self.num_queried += num_asked
            self.num_hit += num_found
            if commits:
                self.commit_row(row)
        else:
            self.leave(row, line)

    def look_up(self, row: int, line: Line, num_asked: int) -> None:
        """The longest run that every group can serve, of a group with a window what is in sight behind it."""
        keys = self.keys(line.text, num_asked)
        hit = self.cache.match(tuple(key.encode() for key in keys))
        length = hit.num_tokens // self.block_size
        assert length == max(filter(lambda length: self.is_served(keys[:length]), range(num_asked + 1)))
        for group, (model, blocks) in enumerate(zip(self.models, hit.blocks, strict=True)):
            num_unseen = self.num_unseen(group, hit.num_tokens)
            assert blocks[:num_unseen] == (NOT_HELD,) * num_unseen and len(blocks) == length
            assert [model.key_of(block) for block in blocks[num_unseen:]] == keys[num_unseen:length]
        if length:
            self.cache.adopt(row, hit.blocks)
            line.blocks, line.num_tokens = [list(blocks) for blocks in hit.blocks], hit.num_tokens
            line.num_committed = hit.num_tokens
            self.hold(hit.blocks)

    def is_served(self, keys: list[str]) -> bool:
        num_tokens = len(keys) * self.block_size
        return all(model.serves(keys[self.num_unseen(g, num_tokens) :]) for g, model in enumerate(self.models))

    def hold(self, blocks: Blocks) -> None:
        for model, numbers in zip(self.models, blocks, strict=True):
            for block in held(numbers):
                model.hold(block)

    def let_go(self, blocks: Blocks) -> None:
        for model, numbers in zip(self.models, blocks, strict=True):
            for block in reversed(held(numbers)):
                model.let_go(block)

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
        num_new = max(0, -(-end // self.block_size) - len(line.blocks[0]))
        is_written = tail < len(line.blocks[0])
        wanted = [num_new + (is_written and self.num_references(g, line.blocks[g][tail]) > 1) for g in self.groups]
        num_free = [len(blocks.free) for blocks in self.pool.groups]
        num_idle = [len(model.idle) for model in self.models]
        slots = self.cache.grow(row, end)
        assert (slots is not None) == all(wanted[g] <= num_free[g] + num_idle[g] for g in self.groups)
        if slots is None:
            return False
        for group, model in enumerate(self.models):
            count = max(0, wanted[group] - num_free[group])
            model.evict(count)
            self.num_evicted[group] += count
        self.lines[row] = line
        self.apply(line, slots)
        for group in self.groups:
            for position in range(start, end):
                self.kv[self.place(line, group, position)] = self.written(line, position)
        line.num_tokens, line.is_in_flight = end, True
        return True

    def apply(self, line: Line, slots: Slots) -> None:
        for table, new in zip(line.blocks, slots.blocks, strict=True):
            table += new
        self.hold(slots.blocks)
        for copy in slots.copies:
            table, model = line.blocks[copy.group], self.models[copy.group]
            table[table.index(copy.source)] = copy.target
            model.hold(copy.target)
            model.let_go(copy.source)
            for offset in range(self.block_size):
                source = copy.group, copy.source, offset
                self.kv[copy.group, copy.target, offset] = self.kv.get(source, "")

    def place(self, line: Line, group: int, position: int) -> tuple[int, int, int]:
        block = line.blocks[group][position // self.block_size]
        assert block != NOT_HELD
        return group, block, position % self.block_size

    def written(self, line: Line, position: int) -> str:
        return line.text[: position // self.block_size + 1]

    @precondition(lambda self: self.has(is_in_flight=True))
    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        self.commit_row(self.pick(which, is_in_flight=True))

    def commit_row(self, row: int) -> None:
        """Full blocks are published, and in a window group those that the row has passed given back."""
        line = self.lines[row]
        line.is_in_flight, line.num_committed = False, line.num_tokens
        keys = self.keys(line.text, line.num_tokens // self.block_size)
        self.cache.commit(row, line.num_tokens, tuple(key.encode() for key in keys))
        for model, table in zip(self.models, line.blocks, strict=True):
            for key, block in zip(keys, table, strict=False):
                if block != NOT_HELD and model.key_of(block) is None:
                    model.publish(key, block)
        num_unseen = tuple(self.num_unseen(group, line.num_tokens - 1) for group in self.groups)
        self.cache.trim(row, num_unseen)
        self.let_go(tuple(tuple(table[:count]) for table, count in zip(line.blocks, num_unseen, strict=True)))
        for table, count in zip(line.blocks, num_unseen, strict=True):
            table[:count] = [NOT_HELD] * count

    # -- sharing and leaving ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.has(is_in_flight=False))
    @rule(which=st.integers(0, 99), drop=st.integers(0, 3))
    def fork(self, which: int, drop: int) -> None:
        parent = self.pick(which, is_in_flight=False)
        line = self.lines[parent]
        num_tokens = max(1, line.num_tokens - drop)
        if any(line.blocks[g].count(NOT_HELD) > self.num_unseen(g, num_tokens) for g in self.groups):
            return
        child = self.new_row()
        slots = self.cache.fork(parent, child, num_tokens)
        assert slots is not None and not slots.copies
        tables = [list(blocks) for blocks in slots.blocks]
        self.lines[child] = Line(line.text, tables, num_tokens, num_tokens, is_in_flight=False)
        self.hold(slots.blocks)

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        row = self.pick(which)
        self.leave(row, self.lines.pop(row))

    def leave(self, row: int, line: Line) -> None:
        self.cache.release(row)
        self.cache.release(row)
        self.let_go(tuple(map(tuple, line.blocks)))

    @precondition(lambda self: self.lines)
    @rule(which=st.integers(0, 99))
    def pin(self, which: int) -> None:
        blocks = tuple(map(tuple, self.lines[self.pick(which)].blocks))
        self.cache.pin(blocks)
        self.pins.append(blocks)
        self.hold(blocks)

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 99))
    def unpin(self, which: int) -> None:
        blocks = self.pins.pop(which % len(self.pins))
        self.cache.unpin(blocks)
        self.let_go(blocks)

    @rule(really=st.integers(0, 9))
    def forget(self, really: int) -> None:
        if really:
            return  # or there would seldom be anything to find
        assert self.cache.forget() == sum(len(model.idle) for model in self.models)
        for model in self.models:
            model.evict(len(model.idle))

    # -- what always holds ------------------------------------------------------------------------------------------

    def num_references(self, group: int, block: int) -> int:
        model = self.models[group]
        return model.holders[block] + (model.key_of(block) is not None)

    @invariant()
    def books_balance(self) -> None:
        audit = self.cache.audit()
        assert audit.is_clean and audit.problems == ()
        num_held = [sum(count > 0 for count in model.holders.values()) for model in self.models]
        num_idle = sum(len(model.idle) for model in self.models)
        assert (audit.total, audit.held, audit.evictable) == (
            self.num_blocks * len(self.groups),
            sum(num_held),
            num_idle,
        )
        assert self.cache.num_free() == self.num_blocks - max(num_held)
        assert self.cache.num_held() == sum(num_held)
        for group, blocks in enumerate(self.pool.groups):
            assert blocks.num_references == [self.num_references(group, block) for block in range(self.num_blocks)]

    @invariant()
    def the_cache_is_what_the_model_has(self) -> None:
        for group, model, num_evicted in zip(self.cache.groups, self.models, self.num_evicted, strict=True):
            assert list(group.evictable) == model.idle
            assert group.blocks_of == {key.encode(): blocks for key, blocks in model.published.items()}
            assert (len(group.key_of), group.num_evicted) == (model.num_blocks, num_evicted)
        assert (self.cache.num_queried, self.cache.num_hit) == (self.num_queried, self.num_hit)

    @invariant()
    def a_key_leads_to_the_kv_of_its_text(self) -> None:
        for group, model in enumerate(self.models):
            for key, blocks in model.published.items():
                for block in blocks:
                    assert {self.kv[group, block, offset] for offset in range(self.block_size)} == {key}

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for line in self.lines.values():
            for number, group in enumerate(self.spec):
                first = 0 if group.window is None else max(0, line.num_committed - group.window + 1)
                for position in range(first, line.num_tokens):
                    assert self.kv[self.place(line, number, position)] == self.written(line, position)

    @invariant()
    def what_is_idle_can_be_found_from_the_front(self) -> None:
        """Tail first: the blocks before an idle one are idle as well and go later, or in use.

        Where all layers see everything; a window group needs no more than the end, whatever became of the front.
        """
        if any(group.window is not None for group in self.spec):
            return
        for model in self.models:
            place = {block: index for index, block in enumerate(model.idle)}
            for block, index in place.items():
                key = model.key_of(block)
                assert key is not None
                for end in range(1, len(key)):
                    before = model.published.get(key[:end], [])
                    assert any(place.get(other, index + 1) > index for other in before)


CacheMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
test_any_history = CacheMachine.TestCase
