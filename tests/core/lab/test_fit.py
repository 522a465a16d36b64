"""The fit: what made the points is found again, noise and outliers or not."""

from __future__ import annotations

import numpy as np
import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.cost_model import CostModel, Curve, StepCounts
from switchgear.core.lab.fit import CostPoint, Residuals, fit, knots, ramps

TRUTH = CostModel(
    "truth",
    "made up",
    "none",
    fixed=0.015,
    per_row=2e-5,
    per_context=1e-6,
    per_pair=4e-8,
    # flat while memory is waited for, then steep
    tokens=Curve((1, 8, 64, 512), (0.0, 0.001, 0.02, 0.3)),
    outputs=Curve((1, 64), (0.002, 0.006)),
)

SHAPES = [
    *(StepCounts.decode(rows, length) for rows in (1, 2, 4, 8, 16, 32, 64) for length in (40, 500, 1800)),
    *(StepCounts.prefill(length) for length in (16, 32, 64, 128, 256, 512, 1024)),
    *(StepCounts.decode(8, 70) + StepCounts.prefill(length) for length in (8, 32, 120, 500)),
    # chunks that end no prompt
    *(StepCounts.of_rows([length], [1000 + length], 0) for length in (64, 256, 500)),
]
OTHERS = [
    StepCounts.decode(12, 203),
    StepCounts.decode(40, 900),
    StepCounts.prefill(300),
    StepCounts.prefill(700),
    StepCounts.decode(5, 105) + StepCounts.prefill(180),
]


def measured(shapes: list[StepCounts], noise: float = 0.0, seed: int = 0) -> list[CostPoint]:
    generator = np.random.default_rng(seed)
    return [(shape, TRUTH.seconds(shape) * float(np.exp(noise * generator.standard_normal()))) for shape in shapes]


def fitted(points: list[CostPoint]) -> CostModel:
    return fit(points, "name", "source", "machine")


def test_without_noise_the_points_come_back() -> None:
    points = measured(SHAPES)
    model = fitted(points)
    assert Residuals.of(model, points).worst < 0.02
    assert Residuals.of(model, measured(OTHERS)).worst < 0.06
    assert (model.name, model.source, model.machine) == ("name", "source", "machine")


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_averaged_out(seed: int) -> None:
    model = fitted(measured(SHAPES, noise=0.05, seed=seed))
    assert Residuals.of(model, measured(OTHERS)).worst < 0.15


def test_a_few_points_that_were_disturbed_change_little() -> None:
    points = measured(SHAPES, noise=0.02)
    disturbed = [(counts, seconds * (2.5 if index % 9 == 4 else 1.0)) for index, (counts, seconds) in enumerate(points)]
    assert Residuals.of(fitted(disturbed), measured(OTHERS)).worst < 0.12


def test_residuals_are_relative() -> None:
    model = CostModel("m", "s", "none", fixed=1.0)
    counts = StepCounts.decode(1, 1)
    residuals = Residuals.of(model, [(counts, 1.0), (counts, 2.0), (counts, 0.5)])
    assert residuals == Residuals(3, 0.5, 1.0)
    assert Residuals.of(model, []) == Residuals(0, 0.0, 0.0)


def test_ramps_add_up_to_the_curve() -> None:
    at, heights = [1, 4, 10], [2.0, 2.5, 7.0]
    factors = [heights[0], (heights[1] - heights[0]) / 3, (heights[2] - heights[1]) / 6]
    curve = Curve(tuple(at), tuple(heights))
    for count in (0, 1, 2, 4, 7, 10, 25):
        assert np.dot(ramps(count, at), factors) == pytest.approx(curve.at(count))


def test_knots_are_points_and_far_enough_apart() -> None:
    assert knots([3, 1, 2, 2, 9, 10, 11, 30], 1.5) == [1, 2, 3, 9, 30]
    assert knots([], 2.0) == []


@pytest.mark.parametrize("points", [[], [(StepCounts.decode(1, 1), 0.0)], [(StepCounts(0, 0, 0, 0, 0), 1.0)]])
def test_points_that_say_nothing_are_refused(points: list[CostPoint]) -> None:
    with pytest.raises(ConfigError):
        fitted(points)
