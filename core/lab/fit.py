"""From measured steps to a cost model, by least squares of the relative error with no negative term.

A point that the others do not bear out, as where something else ran on the machine, counts for less: its weight falls
with its distance (Huber, Robust Estimation of a Location Parameter, 1964).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..records import FloatArray
from .cost_model import CostModel, Curve, StepCounts
from .nonnegative import nonnegative_least_squares

CostPoint = tuple[StepCounts, float]
"""What was in a step, and the seconds that it took."""

TOKEN_STEP, OUTPUT_STEP = 1.5, 4.0
"""How far the knots of a curve are apart, as a factor. The head's curve is one product's, and smoother."""
NUM_REWEIGHTINGS = 8
CLOSE = 1.5
"""Distances up to so many times the typical one count in full."""
NUM_PLAIN = 4
"""Columns before those of the curves: fixed, rows, context, pairs."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far the model is from the points, relative to them."""

    num_points: int
    median: float
    """Of the absolute values."""
    worst: float

    @classmethod
    def of(cls, model: CostModel, points: Sequence[CostPoint]) -> Residuals:
        errors = sorted(float(abs(model.seconds(counts) / seconds - 1)) for counts, seconds in points)
        return cls(len(errors), float(np.median(errors)) if errors else 0.0, errors[-1] if errors else 0.0)

    def table(self) -> dict[str, Any]:
        return asdict(self)


def fit(points: Sequence[CostPoint], name: str, source: str, machine: str) -> CostModel:
    """The model nearest to the points. The knots of its curves are at counts that were measured.

    Raises ConfigError for points that say nothing.
    """
    token_knots = knots([counts.num_tokens for counts, _ in points], TOKEN_STEP)
    output_knots = knots([counts.num_outputs for counts, _ in points if counts.num_outputs], OUTPUT_STEP)
    return solve(points, token_knots, output_knots, name, source, machine)


def fit_exactly(points: Iterable[CostPoint], name: str, source: str, machine: str) -> CostModel:
    """For published tables, which are few points without noise: the token curve has a knot at each of them."""
    points = list(points)
    token_knots = sorted({counts.num_tokens for counts, _ in points})
    return solve(points, token_knots, [], name, source, machine)


def solve(
    points: Sequence[CostPoint], token_knots: list[int], output_knots: list[int], name: str, source: str, machine: str
) -> CostModel:
    if not points:
        raise ConfigError("a cost model needs at least one measured step")
    if any(not seconds > 0 or counts.num_tokens < 1 for counts, seconds in points):
        raise ConfigError("every step of a cost model has tokens and takes more than 0 seconds")
    matrix = np.array([columns_of(counts, token_knots, output_knots) for counts, _ in points], dtype=np.float64)
    seconds = np.array([seconds for _, seconds in points], dtype=np.float64)
    # each row over its time, so that a short step counts as much as a long one
    terms = robust_terms(matrix / seconds[:, None])
    fixed, per_row, per_context, per_pair = map(float, terms[:NUM_PLAIN])
    ends = NUM_PLAIN + len(token_knots)
    return CostModel(
        name,
        source,
        machine,
        fixed,
        per_row,
        per_context,
        per_pair,
        curve_of(token_knots, terms[NUM_PLAIN:ends]),
        curve_of(output_knots, terms[ends:]),
    )


def robust_terms(matrix: FloatArray) -> FloatArray:
    """The factors `[N]` that bring every row of matrix `[M, N]` near 1, outliers counting for less."""
    weights = np.ones(len(matrix))
    terms = nonnegative_least_squares(matrix, weights)
    for _ in range(NUM_REWEIGHTINGS):
        distances = np.abs(matrix @ terms - 1)
        close = CLOSE * np.median(distances) + np.finfo(float).eps
        # the square root, since the rows are squared
        weights = np.sqrt(np.minimum(1.0, close / np.maximum(distances, close)))
        terms = nonnegative_least_squares(matrix * weights[:, None], weights)
    return terms


def columns_of(counts: StepCounts, token_knots: Sequence[int], output_knots: Sequence[int]) -> list[float]:
    plain = [1.0, counts.num_rows, counts.num_context, counts.num_pairs]
    return [*plain, *ramps(counts.num_tokens, token_knots), *ramps(counts.num_outputs, output_knots)]


def ramps(count: int, at: Sequence[int]) -> list[float]:
    """What a curve with knots `at` is made of: a step at the first one, then one ramp from each knot to the next.

    With factors that are not negative their sum never falls. The last ramp goes on.
    """
    if not at:
        return []
    rises = [
        max(0, count - start) if index == len(at) - 2 else min(max(0, count - start), end - start)
        for index, (start, end) in enumerate(pairwise(at))
    ]
    return [float(count > 0), *map(float, rises)]


def curve_of(at: Sequence[int], factors: FloatArray) -> Curve:
    """The curve that `ramps` times the factors draws."""
    if not at:
        return Curve()
    widths = np.diff(np.asarray(at, dtype=np.float64))
    heights = np.cumsum([factors[0], *(factors[1:] * widths)])
    return Curve(tuple(at), tuple(map(float, heights)))


def knots(counts: Iterable[int], step: float) -> list[int]:
    """Counts at which points lie, each at least `step` times the one before; so every part of a curve is measured."""
    chosen: list[int] = []
    for count in sorted(set(counts)):
        if not chosen or count >= step * chosen[-1]:
            chosen.append(count)
    return chosen
