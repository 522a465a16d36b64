"""Where decode leaves the memory line and which chunk is free, on steps made up to show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.lab.ceilings import Ceilings
from switchgear.core.lab.cost_model import StepCounts
from switchgear.core.lab.episodes import Kind, Point
from switchgear.core.lab.raw import RawEngine
from switchgear.core.lab.thresholds import OnLine, crossover, free_chunk, passes
from switchgear.core.lab.work import StepShape, step_work

CEILINGS = Ceilings(bytes_per_s=1e9, flops_per_s=1e12)


def point(
    kind: Kind, counts: StepCounts, seconds: float, *, episode: int = 0, num_times: int = 5, **options: int
) -> Point:
    num_prompt = options.get("num_prompt", 32)
    times = (seconds,) * num_times
    return Point(kind, episode, num_prompt, counts, times, times, is_held_out=bool(options.get("is_held_out", 0)))


def decodes(engine: RawEngine, seconds_of: dict[int, float]) -> list[Point]:
    return [point("decode", StepCounts.decode(rows, 33), seconds) for rows, seconds in seconds_of.items()]


def test_a_step_that_only_reads_more_is_on_the_line(engine: RawEngine) -> None:
    def read(rows: int) -> float:
        return 0.01 + step_work(engine.spec, 4, StepShape(rows, 1, 32)).num_bytes / CEILINGS.bytes_per_s

    found = crossover(decodes(engine, {rows: read(rows) for rows in (1, 4, 64)}), engine.spec, 4, CEILINGS)
    assert found.batch_size is None and found.doubles_at is None
    assert [step.ratio for step in found.steps] == pytest.approx([1.0, 1.0, 1.0])


def test_the_crossover_lies_between_the_steps_around_it(engine: RawEngine) -> None:
    # arithmetic that takes as long as memory at 16 rows, both at the same time
    times = {rows: max(1.0, rows / 16) for rows in (64, 32, 16, 8, 1)}
    found = crossover(decodes(engine, times), engine.spec, 4, CEILINGS)
    assert [step.num_rows for step in found.steps] == [1, 8, 16, 32, 64]
    assert found.batch_size == pytest.approx(20, rel=0.01)
    assert found.doubles_at == pytest.approx(32, rel=0.01)


def test_other_contexts_held_out_points_and_prompts_do_not_count(engine: RawEngine) -> None:
    points = [
        *decodes(engine, {1: 1.0, 8: 1.0}),
        point("decode", StepCounts.decode(8, 500), 9.0, num_prompt=500),
        point("decode", StepCounts.decode(4, 20), 9.0, num_prompt=20, is_held_out=1),
        point("prefill", StepCounts.prefill(16), 9.0, num_prompt=16),
    ]
    assert [step.num_rows for step in crossover(points, engine.spec, 4, CEILINGS).steps] == [1, 8]
    assert crossover([], engine.spec, 4, CEILINGS).steps == ()


def steps_of(*ratios: tuple[int, float]) -> list[OnLine]:
    return [OnLine(rows, ratio, 1.0) for rows, ratio in ratios]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (steps_of((1, 1.0), (2, 1.5), (4, 1.1), (8, 1.2)), None),  # one slow step is no departure
        (steps_of((1, 1.0), (2, 1.5), (4, 1.1), (8, 1.25), (16, 3.0)), 8.0),
        (steps_of((1, 2.0), (2, 3.0)), 1.0),
        ([], None),
    ],
)
def test_a_departure_is_for_good(steps: list[OnLine], expected: float | None) -> None:
    found = passes(steps, 1.25)
    assert found is None if expected is None else found == pytest.approx(expected)


def mixed(num_chunk: int, seconds: float, episode: int = 3) -> Point:
    counts = StepCounts.decode(8, 70) + StepCounts.prefill(num_chunk)
    return point("mixed", counts, seconds, episode=episode, num_times=2)


ALONE = point("decode", StepCounts.decode(8, 70), 1.0, episode=3, num_times=14)


@pytest.mark.parametrize(
    ("times", "free"),
    [
        ({8: 1.1, 16: 1.2, 32: 1.3, 64: 1.2}, 16),  # what a larger one seems to allow does not count
        ({8: 1.5, 16: 1.6}, 0),
        ({8: 1.0, 16: 1.1}, 16),
    ],
)
def test_a_chunk_is_free_as_long_as_every_smaller_one_is(times: dict[int, float], free: int) -> None:
    points = [*(mixed(chunk, seconds) for chunk, seconds in times.items()), ALONE]
    found = free_chunk(points)
    assert (found.num_tokens, found.num_rows) == (free, 8)
    assert [step.num_chunk for step in found.steps] == sorted(times)
    assert found.steps[0].slowdown == pytest.approx(times[8] - 1)


def test_a_scheduler_that_mixes_nothing_has_no_free_chunk(tiny_model: Path) -> None:
    assert free_chunk([ALONE]).num_tokens is None
