"""Intervals against closed forms and scipy, and how often they cover what is true."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from switchgear.core.errors import ConfigError
from switchgear.core.lab.statistics import (
    MIN_BCA,
    MIN_PERCENTILE,
    bca_interval,
    incomplete_beta,
    percentile_interval,
    t_interval,
    t_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 19, 100, 5000])
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.9, 0.975, 0.9995])
def test_t_quantiles_are_those_of_scipy(freedom: int, probability: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-9)


def test_t_quantiles_have_closed_forms_for_one_and_two_degrees_of_freedom() -> None:
    for probability in (0.6, 0.9, 0.975):
        assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
        odds = 2 * probability - 1
        assert t_quantile(probability, 2) == pytest.approx(odds * math.sqrt(2 / (1 - odds**2)), rel=1e-9)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (3.0, 0.5), (50.0, 0.5), (2.0, 7.0)])
def test_the_incomplete_beta_function_is_that_of_scipy(a: float, b: float) -> None:
    for x in (0.0, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6, 1.0):
        assert incomplete_beta(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-9, abs=1e-12)


def test_the_t_interval_is_that_of_scipy() -> None:
    values = np.random.default_rng(3).normal(0.2, 1.0, 9)
    low, high = stats.t.interval(0.95, 8, loc=values.mean(), scale=stats.sem(values))
    assert t_interval(values.tolist()) == pytest.approx((values.mean(), low, high))


def test_one_value_says_nothing_of_the_spread_and_equal_ones_have_none() -> None:
    assert t_interval([0.3]) == (0.3, -math.inf, math.inf)
    assert t_interval([0.25] * 4) == (0.25, 0.25, 0.25)
    assert bca_interval([0.25] * 8) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("seed", range(3))
def test_the_bootstrap_is_that_of_scipy(seed: int) -> None:
    values = np.random.default_rng(seed).exponential(size=30)
    for ours, method in ((bca_interval, "BCa"), (percentile_interval, "percentile")):
        theirs = stats.bootstrap(
            (values,), np.mean, method=method, n_resamples=20_000, rng=np.random.default_rng(1)
        ).confidence_interval
        width = theirs.high - theirs.low
        assert ours(values.tolist())[1:] == pytest.approx((theirs.low, theirs.high), abs=0.03 * width)


def test_a_bootstrap_of_too_few_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="percentile bootstrap of 19 blocks is narrower than it says"):
        percentile_interval([0.1 * n for n in range(MIN_PERCENTILE - 1)])
    percentile_interval([0.1 * n for n in range(MIN_PERCENTILE)])
    with pytest.raises(ConfigError, match="BCa interval of 5 blocks says nothing"):
        bca_interval([0.1 * n for n in range(MIN_BCA - 1)])
    bca_interval([0.1 * n for n in range(MIN_BCA)])


@pytest.mark.parametrize("num_blocks", [3, 5, 12])
def test_the_t_interval_of_nothing_covers_zero_as_often_as_it_says(num_blocks: int) -> None:
    generator = np.random.default_rng(num_blocks)
    covered = 0
    for _ in range(1000):
        arm, other = generator.normal(0, 0.1, (2, num_blocks))
        _, low, high = t_interval((arm - other).tolist())
        covered += low <= 0 <= high
    assert 930 <= covered <= 970


def test_the_percentile_bootstrap_of_few_values_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchgear.core.lab.statistics.MIN_PERCENTILE", 1)
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        _, low, high = percentile_interval(generator.normal(0, 1, 5).tolist())
        covered += low <= 0 <= high
    assert covered < 0.9 * 400
