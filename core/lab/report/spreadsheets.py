"""Everything as CSV, unrounded: one file a table, with names that stay the same from version to version."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..analysis import Analysis

Line = tuple[object, ...]


def effects(analysis: Analysis) -> Iterator[Line]:
    yield "switch", "metric", "cache", "arm", "against", "ratio", "low", "high", "blocks", "method", "significant"
    for found in analysis.effects:
        where = found.switch, found.metric, found.cache, found.arm, found.against
        yield *where, found.ratio, found.low, found.high, found.num_blocks, found.method, found.is_significant


def interactions(analysis: Analysis) -> Iterator[Line]:
    yield "first", "second", "metric", "cache", "ratio", "low", "high", "blocks", "significant"
    for found in analysis.interactions:
        where = found.first, found.second, found.metric, found.cache
        yield *where, found.ratio, found.low, found.high, found.num_blocks, found.is_significant


def metrics(analysis: Analysis) -> Iterator[Line]:
    yield "arm", "cache", "metric", "median", "smallest", "largest"
    for arm in analysis.arms:
        for metric, values in arm.metrics.items():
            yield arm.name, arm.cache, metric, *values


def requests(analysis: Analysis) -> Iterator[Line]:
    """The times of single requests, in seconds. A request of one token has no TPOT, so each time has its own lines."""
    yield "arm", "cache", "time", "seconds"
    for arm in analysis.arms:
        for time, values in (("ttft", arm.ttft), ("tpot", arm.tpot)):
            for value in values:
                yield arm.name, arm.cache, time, value


def arms(analysis: Analysis) -> Iterator[Line]:
    """With what was refused, and with the verdict on the outputs."""
    yield (
        *("arm", "on", "off", "dropped", "varied", "baseline", "plan_hash", "environment", "refused", "equivalence"),
        *("tokens", "undecided", "margin", "measure", "value", "bound", "holds", "problem"),
    )
    for arm in {each.name: each for each in analysis.arms}.values():
        sets = (" ".join(names) for names in (arm.on, arm.off, arm.dropped))
        varied = " ".join(f"{key}={value}" for key, value in arm.varied.items())
        line = arm.name, *sets, varied, arm.baseline, arm.plan_hash, arm.environment, arm.refused, arm.equivalence
        found = arm.equality
        if found is None:
            yield *line, *[None] * 8
        else:
            counts = found.num_tokens, found.num_undecided, found.margin
            yield *line, *counts, found.measure, found.value, found.bound, found.holds, found.problem


def blocks(analysis: Analysis) -> Iterator[Line]:
    """Those that do not count."""
    yield "block", "reason"
    yield from analysis.voided.items()


FILES: Mapping[str, Callable[[Analysis], Iterator[Line]]] = {
    "effects": effects,
    "interactions": interactions,
    "metrics": metrics,
    "requests": requests,
    "arms": arms,
    "voided_blocks": blocks,
}


def write_spreadsheets(analysis: Analysis, folder: Path) -> list[Path]:
    """A file for each of `FILES`, also where it has no line but its header. Raises OSError where none can be written.

    Nothing is an empty cell, True and False are spelled out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, lines in FILES.items():
        paths.append(folder / f"{name}.csv")
        with paths[-1].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines(analysis))
    return paths
