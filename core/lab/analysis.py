"""What the rows of an ablation say: effects, interactions and equality, with intervals over blocks.

Every block measures every arm once. A comparison takes one value from each block, a difference of logarithms, so that
what the machine does to a whole block cancels; over the blocks those values make an estimate and its interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .contrasts import ArmSets, Cell, Contrast, contrasts
from .results_file import Row, read_rows
from .statistics import METHODS


@dataclass(frozen=True, slots=True)
class Effect:
    """What one switch does to one metric."""

    switch: str
    """A plugin; plugins that go together, with " + " between; a varied option as "key=value"; or "warm cache"."""
    metric: str
    arm: str
    against: str
    cache: str
    """"cold" or "warm"; "warm/cold" where the two are compared."""
    ratio: float
    """The metric with the switch on over the metric with it off: 1.0 is no effect."""
    low: float
    """Of the 95 % interval of the ratio; 0 and infinity where one block alone was measured."""
    high: float
    num_blocks: int
    method: str
    """"t" or "bca"."""
    is_significant: bool
    """Whether the interval leaves 1.0 out. Of twenty that do nothing, one is."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """How much more two switches do together than each alone."""

    first: str
    second: str
    """A switch too, or "warm cache"."""
    metric: str
    cache: str
    ratio: float
    """The effect of both over the product of the effect of each: 1.0 is none, and the effects multiply."""
    low: float
    high: float
    num_blocks: int
    is_significant: bool


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether an arm keeps what its class promises, over all that was checked of it."""

    against: str
    equivalence: str
    num_tokens: int
    num_undecided: int
    """Tokens that differ from everything-off's own where it was undecided."""
    margin: float
    """The gap between everything-off's two candidates below which it is."""
    measure: str
    """Of a lossy class, what is measured; empty of the others."""
    value: float | None
    bound: float | None
    holds: bool | None
    """None: of a lossy class with a measure that is not taken here."""
    problem: str


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm, with one state of its caches."""

    name: str
    cache: str
    on: tuple[str, ...]
    off: tuple[str, ...]
    dropped: tuple[str, ...]
    """Plugins that had to go because they require one that is off."""
    options: Mapping[str, Mapping[str, Any]]
    varied: Mapping[str, Any]
    """Options that were set for this arm, as `plugins.NAME.OPTION`."""
    baseline: str | None
    plan_hash: str
    environment: str
    plan: tuple[str, ...]
    equivalence: str
    refused: str
    metrics: Mapping[str, tuple[float, float, float]]
    """Of the blocks that count: median, smallest and largest."""
    ttft: tuple[float, ...]
    """Seconds, of every request of those blocks."""
    tpot: tuple[float, ...]
    equality: Equality | None

    @property
    def is_broken(self) -> bool:
        return self.equality is not None and self.equality.holds is False


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that a result file says."""

    header: Mapping[str, Any]
    arms: tuple[ArmSummary, ...]
    """In the order of the design, each with a cold and then a warm cache where both were measured."""
    effects: tuple[Effect, ...]
    interactions: tuple[Interaction, ...]
    voided: Mapping[int, str]
    """Blocks that do not count, with the reason."""
    num_blocks: int
    """That count."""
    ended: str
    """Why it came to an end; empty of one that was killed or still runs."""
    notes: tuple[str, ...]
    """What the design cannot tell, one sentence each."""

    @property
    def broken(self) -> tuple[ArmSummary, ...]:
        return tuple(arm for arm in self.arms if arm.is_broken)


def analyse(path: Path, method: str = "t") -> Analysis:
    """Read a result file. method: of the intervals, "t", "bca" (6 blocks) or "percentile" (20 blocks).

    Raises ConfigError for a file that cannot be read, and for a method that has too few blocks.
    """
    return analyse_rows(read_rows(path), method)


def analyse_rows(rows: Sequence[Row], method: str = "t") -> Analysis:
    """As `analyse`, of rows that begin with the header."""
    header = rows[0]
    arms: dict[str, Row] = {row["arm"]: row for row in rows if row["kind"] == "arm"}
    equality = {
        arm: equality_of([row for row in rows if row["kind"] == "equality" and row["arm"] == arm]) for arm in arms
    }
    caches: list[str] = header["caches"]
    cells = [(arm, cache) for arm in arms if not arms[arm]["refused"] for cache in caches]
    blocks, voided = blocks_of(rows, cells, header["anchor"])
    sets = [
        ArmSets(name, frozenset(arm["on"]), arm["varied"], arm["baseline"])
        for name, arm in arms.items()
        if not arm["refused"]
    ]
    found, notes = contrasts(header["design"], sets, header["switches"], caches)
    effects, interactions = [], []
    for contrast in found:
        for metric in metrics_of(blocks):
            values = [value for block in blocks.values() if (value := value_of(contrast, metric, block)) is not None]
            # a metric that is 0 somewhere has no ratio
            if values and len(values) == len(blocks):
                interval = METHODS[method](values) if len(values) > 1 else METHODS["t"](values)
                ratio, low, high = map(math.exp, interval)
                is_significant = low > 1 + NOTHING or high < 1 - NOTHING
                if len(contrast.switches) == 1:
                    [switch] = contrast.switches
                    about = switch, metric, contrast.arm, contrast.against, contrast.cache
                    effects.append(Effect(*about, ratio, low, high, len(values), method, is_significant))
                else:
                    first, second = contrast.switches
                    about_both = first, second, metric, contrast.cache
                    interactions.append(Interaction(*about_both, ratio, low, high, len(values), is_significant))
    summaries = [summary_of(arm, cache, blocks, equality[name]) for name, arm in arms.items() for cache in caches]
    ends = [row["reason"] for row in rows if row["kind"] == "end"]
    return Analysis(
        header,
        tuple(summaries),
        tuple(effects),
        tuple(interactions),
        voided,
        len(blocks),
        ends[-1] if ends and rows[-1]["kind"] == "end" else "",
        tuple(notes),
    )


NOTHING = 1e-9
"""What rounding makes of metrics that are equal in all blocks."""

Block = Mapping[Cell, Sequence[Row]]
"""The runs of one block, by what they measured."""


def blocks_of(rows: Sequence[Row], cells: Sequence[Cell], anchor: str) -> tuple[dict[int, Block], dict[int, str]]:
    """The blocks that count, and the others with the reason."""
    voided = {row["block"]: row["reason"] for row in rows if row["kind"] == "void"}
    blocks: dict[int, dict[Cell, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["kind"] == "run":
            blocks[row["block"]][row["arm"], row["cache"]].append(row)
    whole: dict[int, Block] = {}
    for number, block in blocks.items():
        num_anchors = max((len(runs) for (arm, _), runs in block.items() if arm == anchor), default=0)
        if number not in voided and num_anchors >= 2 and all(cell in block for cell in cells):
            whole[number] = block
        else:
            voided.setdefault(number, "unfinished")
    return whole, dict(sorted(voided.items()))


def metrics_of(blocks: Mapping[int, Block]) -> list[str]:
    """Every metric that each run has, in the order of the first."""
    runs = [run for block in blocks.values() for cell in block.values() for run in cell]
    return [name for name in runs[0]["metrics"] if all(name in run["metrics"] for run in runs)] if runs else []


def value_of(contrast: Contrast, metric: str, block: Block) -> float | None:
    """The weighted sum of logarithms in one block; None where a metric is not above 0.

    An arm that ran several times in it, as the anchor does, counts by the mean.
    """
    total = 0.0
    for cell, weight in contrast.weights.items():
        values = [run["metrics"][metric] for run in block[cell]]
        if min(values) <= 0:
            return None
        total += weight * math.fsum(map(math.log, values)) / len(values)
    return total


def summary_of(arm: Row, cache: str, blocks: Mapping[int, Block], equality: Equality | None) -> ArmSummary:
    runs = [run for block in blocks.values() for run in block.get((arm["arm"], cache), ())]
    names = [name for name in (runs[0]["metrics"] if runs else ()) if all(name in run["metrics"] for run in runs)]
    levels = {name: [run["metrics"][name] for run in runs] for name in names}
    return ArmSummary(
        name=arm["arm"],
        cache=cache,
        on=tuple(arm["on"]),
        off=tuple(arm["off"]),
        dropped=tuple(arm["dropped"]),
        options=arm["options"],
        varied=arm["varied"],
        baseline=arm["baseline"],
        plan_hash=arm["plan_hash"],
        environment=arm["environment"],
        plan=tuple(arm["plan"]),
        equivalence=arm["equivalence"],
        refused=arm["refused"],
        metrics={name: (median(values), min(values), max(values)) for name, values in levels.items()},
        ttft=tuple(value for run in runs for value in run["ttft"]),
        tpot=tuple(value for run in runs for value in run["tpot"]),
        equality=equality,
    )


def equality_of(rows: Sequence[Row]) -> Equality | None:
    """All that was checked of one arm as one: it holds if each check does."""
    if not rows:
        return None
    verdicts = [row["holds"] for row in rows]
    values = [row["value"] for row in rows if row["value"] is not None]
    return Equality(
        against=rows[0]["against"],
        equivalence=rows[0]["equivalence"],
        num_tokens=sum(row["num_tokens"] for row in rows),
        num_undecided=sum(row["num_undecided"] for row in rows),
        margin=max(row["margin"] for row in rows),
        measure=rows[0]["measure"],
        value=max(values, default=None),
        bound=rows[0]["bound"],
        holds=False if False in verdicts else None if None in verdicts else True,
        problem=next((row["problem"] for row in rows if row["problem"]), ""),
    )
