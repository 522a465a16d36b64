"""Two numbers to configure by, read off measured steps: where decode leaves the memory line, which chunk is free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.spec import ModelSpec
from .ceilings import Ceilings
from .episodes import Point
from .work import StepShape, step_work

DEPARTURE = 0.25
"""A step is on the memory line while it takes at most so much longer than the line says."""
DISTURBANCE = 0.25
"""A chunk is free while the step takes at most so much longer than that of the same decodes alone."""


@dataclass(frozen=True, slots=True)
class OnLine:
    """A decode step beside what it would take if only its bytes counted."""

    num_rows: int
    seconds: float
    """The forward, median."""
    line_seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.line_seconds


@dataclass(frozen=True, slots=True)
class Crossover:
    """The batch size at which decode leaves the memory line and turns compute-bound.

    The line is the forward with one row, plus the time to read what more rows add (their KV, and the experts that they
    choose) at the machine's measured bandwidth. Decode has left it at the first batch size from which on every measured
    forward takes over 1 + DEPARTURE times the line, and the crossover is where, between that one and the one before, it
    passes that factor (both axes logarithmic).
    """

    batch_size: float | None
    """None: not within what was measured."""
    doubles_at: float | None
    """The same for twice the line: from there on arithmetic is more than half of the forward."""
    steps: tuple[OnLine, ...]
    """By batch size, ascending."""


def crossover(points: Sequence[Point], spec: ModelSpec, itemsize: int, ceilings: Ceilings) -> Crossover:
    """From decode at the shortest context that was measured.

    itemsize: bytes of a weight and of an element of KV; ceilings: of the machine.
    """
    steps = on_line(shortest_decodes(points), spec, itemsize, ceilings)
    return Crossover(passes(steps, 1 + DEPARTURE), passes(steps, 2.0), tuple(steps))


def shortest_decodes(points: Sequence[Point]) -> list[Point]:
    """One for each batch size, ascending: decodes of the episode with the shortest prompts."""
    decodes = [point for point in points if point.kind == "decode" and not point.is_held_out]
    shortest = min((point.num_prompt for point in decodes), default=0)
    by_rows: dict[int, Point] = {}
    for point in decodes:
        if point.num_prompt == shortest:
            rows = point.counts.num_rows
            by_rows[rows] = max(point, by_rows.get(rows, point), key=lambda each: len(each.seconds))
    return [by_rows[rows] for rows in sorted(by_rows)]


def on_line(decodes: Sequence[Point], spec: ModelSpec, itemsize: int, ceilings: Ceilings) -> list[OnLine]:
    if not decodes:
        return []

    def num_bytes(point: Point) -> float:
        rows = point.counts.num_rows
        return step_work(spec, itemsize, StepShape(rows, 1, point.counts.num_context // rows - 1)).num_bytes

    # the line starts at the fewest rows that were measured, which is one
    first = decodes[0]
    added = [(num_bytes(point) - num_bytes(first)) / ceilings.bytes_per_s for point in decodes]
    return [
        OnLine(point.counts.num_rows, point.executor_median, first.executor_median + max(0.0, seconds))
        for point, seconds in zip(decodes, added, strict=True)
    ]


def passes(steps: Sequence[OnLine], factor: float) -> float | None:
    """The batch size from which on all steps take over `factor` times the line; None if the last one does not."""
    above = len(steps)
    while above and steps[above - 1].ratio > factor:
        above -= 1
    if above == len(steps):
        return None
    if not above:
        return float(steps[0].num_rows)
    before, after = steps[above - 1], steps[above]
    low, high = math.log(before.ratio), math.log(after.ratio)
    share = (math.log(factor) - low) / (high - low)
    return float(before.num_rows * (after.num_rows / before.num_rows) ** share)


@dataclass(frozen=True, slots=True)
class Beside:
    """A step of decodes and a chunk, beside the same decodes alone."""

    num_chunk: int
    """Prompt tokens in the step."""
    seconds: float
    alone_seconds: float

    @property
    def slowdown(self) -> float:
        return self.seconds / self.alone_seconds - 1


@dataclass(frozen=True, slots=True)
class FreeChunk:
    """The largest chunk that leaves decode undisturbed.

    That is the largest measured one such that neither it nor any smaller one makes the step more than DISTURBANCE
    longer than the same decodes alone, which run in turn with it.
    """

    num_tokens: int | None
    """0: not even the smallest measured one. None: this scheduler never runs a prompt beside decodes."""
    num_rows: int
    """That decode beside it."""
    steps: tuple[Beside, ...]
    """By chunk, ascending."""


def free_chunk(points: Sequence[Point]) -> FreeChunk:
    steps: list[Beside] = []
    num_rows = 0
    for episode in sorted({point.episode for point in points if point.kind == "mixed" and not point.is_held_out}):
        its = [point for point in points if point.episode == episode]
        # the decodes alone stood between the mixed steps, more often than any other decode there
        alone = max((point for point in its if point.kind == "decode"), key=lambda point: len(point.seconds))
        num_rows = alone.counts.num_rows
        for point in its:
            if point.kind == "mixed":
                num_chunk = point.counts.num_tokens - num_rows
                steps.append(Beside(num_chunk, point.median, alone.median))
    steps.sort(key=lambda step: step.num_chunk)
    if not steps:
        return FreeChunk(None, num_rows, ())
    free = 0
    for step in steps:
        if step.slowdown > DISTURBANCE:
            break
        free = step.num_chunk
    return FreeChunk(free, num_rows, tuple(steps))
