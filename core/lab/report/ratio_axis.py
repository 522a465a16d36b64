"""A logarithmic axis of factors: halving and doubling are equally far from 1.0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..analysis import Effect
from .log_ticks import most
from .wording import TIMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 1.25
"""The axis reaches from 1/1.25 to 1.25 at least: a change of one percent must not look like much."""
REACH = 4.0
"""An interval may widen the axis by this factor beyond the outermost estimate; what is longer is cut with an arrow."""
PADDING = 1.04
MAX_TICKS = 7
ROOM = 0.08
"""Share of the axis from label to label."""


def limits(effects: Sequence[Effect]) -> tuple[float, float]:
    """The factors at the ends of the axis."""
    ratios = [effect.ratio for effect in effects]
    lows = [effect.low for effect in effects if effect.low > 0]
    highs = [effect.high for effect in effects if math.isfinite(effect.high)]
    low = max(min([1 / LEAST, *ratios, *lows]), min([1 / LEAST, *ratios]) / REACH)
    high = min(max([LEAST, *ratios, *highs]), max([LEAST, *ratios]) * REACH)
    return low / PADDING, high * PADDING


def families(low: float, high: float) -> Iterator[list[float]]:
    """Sets of round factors, each with 1.0 in it."""
    for step in (0.05, 0.1, 0.25):
        # finer ones would crowd on the side where the logarithm is flat
        if high / low < 10:
            yield [round(step * index, 2) for index in range(1, math.ceil(high / step) + 1)]
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    yield [2.0**power for power in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    for digits in ((1, 2, 5), (1, 3), (1,)):
        yield [digit * 10.0**decade for decade in decades for digit in digits]
    yield [10.0**decade for decade in decades if decade % 3 == 0]


def ticks(low: float, high: float, limit: int = MAX_TICKS) -> list[float]:
    """The most round factors between the ends, at most so many, since their labels need room; 1.0 among them."""
    return most(families(low, high), low, high, limit, ROOM * MAX_TICKS / limit) or [1.0]


def set_ratio_axis(axes: Axes, low: float, high: float, num_ticks: int = MAX_TICKS) -> list[float]:
    """Give the axes their scale and labels; returns the ticks."""
    places = ticks(low, high, num_ticks)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(places, [f"{TIMES}{factor:g}" for factor in places])
    axes.set_xticks([], minor=True)
    return places
