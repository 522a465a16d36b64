"""Intervals for a mean of few values: by Student's t, and by the bootstrap in two forms.

Nothing but the standard library and numpy; the tests compare with scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..errors import ConfigError
from ..records import FloatArray

CONFIDENCE = 0.95
MIN_BCA = 6
"""Values below which the bootstrap has too few different resamples to say anything."""
MIN_PERCENTILE = 20
"""Values below which the percentile bootstrap is too narrow: of 10 it covers 90 % where it says 95 %."""
NUM_RESAMPLES = 9_999


class Interval(NamedTuple):
    """An estimate and the interval around it; infinite ends where one value alone says nothing of the spread."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


# -- Student's t ----------------------------------------------------------------------------------------------------


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """`mean +- t * s / sqrt(n)`: exact for independent values of one normal law."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile((1 + confidence) / 2, count - 1) * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """Where Student's t with so many degrees of freedom reaches a probability of at least one half."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_probability(value: float, freedom: int) -> float:
    """P(T <= value) for a value that is not negative."""
    tail = incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)
    return 1 - tail / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction.

    Press et al., Numerical Recipes, section 6.4; the fraction is evaluated by Lentz's method.
    """
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        # there the fraction of the other side converges faster
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction / a


# -- the bootstrap --------------------------------------------------------------------------------------------------


def bca_interval(values: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Bias-corrected and accelerated: Efron and Tibshirani, An Introduction to the Bootstrap, section 14.3.

    Raises ConfigError under 6 values. Of fewer than about 20 it is narrower than it should be.
    """
    if len(values) < MIN_BCA:
        raise ConfigError(
            f"a BCa interval of {len(values)} blocks says nothing: take the t interval, or {MIN_BCA} blocks"
        )
    given = np.asarray(values, dtype=np.float64)
    mean, count = float(given.mean()), len(given)
    if np.ptp(given) == 0:
        return Interval(mean, mean, mean)
    means = resampled_means(given, seed)
    normal = NormalDist()
    # half of the ties, so that a lattice of few values is not taken for a bias
    share = float(np.count_nonzero(means < mean) + np.count_nonzero(means == mean) / 2) / len(means)
    share = min(max(share, 1 / len(means)), 1 - 1 / len(means))
    bias = normal.inv_cdf(share)
    without = mean - (given - mean) / (count - 1)
    gaps = without.mean() - without
    acceleration = float((gaps**3).sum() / (6 * (gaps**2).sum() ** 1.5))

    def corrected(probability: float) -> float:
        shifted = bias + normal.inv_cdf(probability)
        return normal.cdf(bias + shifted / (1 - acceleration * shifted))

    low, high = np.quantile(means, [corrected((1 - confidence) / 2), corrected((1 + confidence) / 2)])
    return Interval(mean, float(low), float(high))


def percentile_interval(values: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """The middle of the resampled means. Raises ConfigError under 20 values, of which it would be too narrow."""
    if len(values) < MIN_PERCENTILE:
        raise ConfigError(
            f"a percentile bootstrap of {len(values)} blocks is narrower than it says: take the t interval, or "
            f"{MIN_PERCENTILE} blocks"
        )
    given = np.asarray(values, dtype=np.float64)
    means = resampled_means(given, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(given.mean()), float(low), float(high))


def resampled_means(values: FloatArray, seed: int) -> FloatArray:
    """`[NUM_RESAMPLES]` means of as many values, drawn with replacement."""
    generator = np.random.default_rng(seed)
    means: FloatArray = values[generator.integers(0, len(values), (NUM_RESAMPLES, len(values)))].mean(axis=1)
    return means


METHODS: Mapping[str, Callable[[Sequence[float]], Interval]] = {
    "t": t_interval,
    "bca": bca_interval,
    "percentile": percentile_interval,
}
