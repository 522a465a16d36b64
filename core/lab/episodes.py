"""Which steps a profile takes, and the rounds in which they are taken.

An episode brings an engine into a state and times the steps there: decode at falling batch sizes, a prompt alone, a
prompt beside rows that decode. What a step really held is read from its batch, so that any scheduler will do: one that
mixes nothing, or splits every prompt, gives other points and no wrong ones.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .cost_model import StepCounts
from .timed_steps import TimedEngine, TimedStep, first_error

Kind = Literal["decode", "prefill", "mixed"]

NUM_DECODES = 5
"""Timed steps at each batch size, in each round."""
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SHORT, MEDIUM, LONG = 32, 512, 2048
"""Tokens of context at which decode is measured."""
PROMPTS = (16, 32, 64, 128, 256, 512, 1024)
CHUNKS = (8, 16, 32, 64, 128, 256, 512)
MIXED_ROWS = 8
MOST_STEPS = 80
"""Of one episode, and so tokens that its rows gain."""
MIN_ROUNDS = 3
"""The first of which is warm-up."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine can hold at once."""

    max_num_seqs: int
    max_model_len: int
    kv_tokens: int
    """Of the whole pool."""
    kv_block_size: int

    def num_rows(self, num_rows: int, length: int) -> int:
        """As many of the rows as fit with prompts of so many tokens, and room to be stepped."""
        blocks = -(-min(length + self.reserve, self.max_model_len) // self.kv_block_size)
        return min(num_rows, self.max_num_seqs, max(1, self.kv_tokens // self.kv_block_size // blocks))

    def length(self, num_tokens: int) -> int:
        """As many of the tokens as leave a sequence room to be stepped."""
        return max(1, min(num_tokens, self.max_model_len - self.reserve))

    @property
    def reserve(self) -> int:
        """Tokens that a row gains in an episode, where it may be so long."""
        return min(MOST_STEPS, self.max_model_len // 2)


@dataclass(frozen=True, slots=True)
class Episode:
    """One way to come to steps."""

    kind: Kind
    num_prompt: int
    num_rows: tuple[int, ...] = (1,)
    """Batch sizes at which decode is timed, falling; of a mixed episode the one beside which the chunks run."""
    chunks: tuple[int, ...] = ()
    is_held_out: bool = False
    """Its points are kept from the fit, to check it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of step, timed several times."""

    kind: Kind
    episode: int
    """Steps of one episode stood side by side."""
    num_prompt: int
    """Prompt tokens of its rows; of a mixed one's decoding rows."""
    counts: StepCounts
    """In the middle, where steps differ by the tokens that their rows gained."""
    seconds: tuple[float, ...]
    executor_seconds: tuple[float, ...]
    is_held_out: bool

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """The distance between the quartiles over the median: how far one time can be trusted."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float((high - low) / self.median)

    @property
    def executor_median(self) -> float:
        return float(np.median(self.executor_seconds))


Key = tuple[int, str]
"""Episode and step in it: what is repeated round after round."""


@dataclass(slots=True)
class Collected:
    """Steps by what they are, over all rounds."""

    steps: dict[Key, list[TimedStep]] = field(default_factory=dict)

    def add(self, key: Key, step: TimedStep | None) -> None:
        if step is not None:
            self.steps.setdefault(key, []).append(step)

    def points(self, episodes: list[Episode]) -> list[Point]:
        return [point_of(key, episodes[key[0]], steps) for key, steps in self.steps.items()]


def point_of(key: Key, episode: Episode, steps: list[TimedStep]) -> Point:
    index, label = key
    fields = np.array([counts_of(step.counts) for step in steps])
    return Point(
        kind="decode" if steps[0].is_decode else "mixed" if label.startswith("beside") else "prefill",
        episode=index,
        num_prompt=episode.num_prompt,
        counts=StepCounts(*(int(value) for value in np.median(fields, axis=0))),
        seconds=tuple(step.seconds for step in steps),
        executor_seconds=tuple(step.executor_seconds for step in steps),
        is_held_out=episode.is_held_out,
    )


def counts_of(counts: StepCounts) -> tuple[int, ...]:
    return counts.num_rows, counts.num_tokens, counts.num_context, counts.num_pairs, counts.num_outputs


def make_episodes(room: Room) -> list[Episode]:
    """All that an engine of this size is asked for."""
    return [*fitted_episodes(room), *held_out_episodes(room)]


def fitted_episodes(room: Room) -> Iterator[Episode]:
    most = room.num_rows(BATCH_SIZES[-1], room.length(SHORT))
    sizes = sorted({*(size for size in BATCH_SIZES if size <= min(most, 64)), most}, reverse=True)
    yield Episode("decode", room.length(SHORT), tuple(sizes))
    for length, num_rows in ((room.length(MEDIUM), 8), (room.length(LONG), 2)):
        if length > 2 * SHORT:
            yield Episode("decode", length, falling(room.num_rows(num_rows, length)))
    for num_prompt in rising(PROMPTS, room.length(PROMPTS[-1])):
        yield Episode("prefill", num_prompt)
    if room.max_num_seqs > 1:
        rows = room.num_rows(min(MIXED_ROWS, room.max_num_seqs - 1), room.length(2 * SHORT))
        yield Episode("mixed", room.length(2 * SHORT), (rows,), rising(CHUNKS, room.length(CHUNKS[-1])))


def held_out_episodes(room: Room) -> Iterator[Episode]:
    """Other batch sizes, lengths and mixes than those of the fit, between them."""
    length = room.length(200)
    yield Episode("decode", length, falling(room.num_rows(12, length), by=3), is_held_out=True)
    yield Episode("prefill", room.length(300), is_held_out=True)
    yield Episode("prefill", room.length(700), is_held_out=True)
    if room.max_num_seqs > 1:
        rows = room.num_rows(min(5, room.max_num_seqs - 1), room.length(100))
        yield Episode("mixed", room.length(100), (rows,), rising((40, 180), room.length(180)), is_held_out=True)


def falling(num_rows: int, by: int = 2) -> tuple[int, ...]:
    """From so many rows down to one."""
    sizes = [num_rows]
    while sizes[-1] > 1:
        sizes.append(max(1, sizes[-1] // by))
    return tuple(sizes)


def rising(counts: Iterable[int], most: int) -> tuple[int, ...]:
    """Those that are possible; the most that is, where none of them is."""
    return tuple(count for count in counts if count <= most) or (most,)


class Rounds:
    """Takes every episode, round after round, each in another order, until the budget is spent."""

    def __init__(
        self,
        engine: TimedEngine,
        episodes: list[Episode],
        budget: float,
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        on_round: Callable[[int, float], None] = lambda number, seconds: None,
    ) -> None:
        self.engine, self.episodes, self.budget = engine, episodes, budget
        self.random = random.Random(seed)
        self.clock, self.on_round = clock, on_round
        self.collected = Collected()
        self.num_rounds = 0

    def run(self) -> list[Point]:
        """At least MIN_ROUNDS, the first of which is not counted. Raises RequestError if a request fails."""
        start = self.clock()
        longest = 0.0
        while self.num_rounds < MIN_ROUNDS or self.clock() - start + longest < self.budget:
            before = self.clock()
            for index in self.random.sample(range(len(self.episodes)), len(self.episodes)):
                self.take(index)
            if self.num_rounds == 0:
                self.collected = Collected()
            self.num_rounds += 1
            longest = max(longest, self.clock() - before)
            self.on_round(self.num_rounds, self.clock() - start)
        return self.collected.points(self.episodes)

    def take(self, index: int) -> None:
        episode = self.episodes[index]
        if episode.kind == "mixed":
            self.take_mixed(index, episode)
        else:
            self.take_plain(index, episode)

    def take_plain(self, index: int, episode: Episode) -> None:
        """Prompts at once until their rows decode, then decode at falling batch sizes."""
        lives = [self.engine.add(episode.num_prompt) for _ in range(episode.num_rows[0])]
        try:
            self.settle(index)
            for num_rows in episode.num_rows if episode.kind == "decode" else ():
                self.engine.drop(lives[num_rows:])
                for _ in range(NUM_DECODES):
                    self.collected.add((index, f"decode {num_rows}"), self.engine.step())
            first_error(lives)
        finally:
            self.engine.drop(lives)

    def take_mixed(self, index: int, episode: Episode) -> None:
        """Beside rows that decode, one prompt after another; in turn with steps of those rows alone."""
        lives = [self.engine.add(episode.num_prompt) for _ in range(episode.num_rows[0])]
        try:
            self.settle(index)
            for chunk in self.random.sample(episode.chunks, len(episode.chunks)):
                for _ in range(2):
                    self.collected.add((index, "alone"), self.engine.step())
                guest = self.engine.add(chunk)
                lives.append(guest)
                step = self.engine.step()
                if step is not None and not step.is_decode:  # a scheduler that mixes let it in
                    self.collected.add((index, f"beside {chunk}"), step)
                first_error(lives)
                self.engine.drop([lives.pop()])
        finally:
            self.engine.drop(lives)

    def settle(self, index: int) -> None:
        """Step until only decodes are left: of those that were let in, where a scheduler holds the others back."""
        number = 0
        while (step := self.engine.step()) is not None and not step.is_decode:
            self.collected.add((index, f"step {number}"), step)
            number += 1
