"""Round places on a logarithmic axis, as many as there is room for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

EDGE = 0.02
"""Share of the axis at either end where a label would stand half outside."""


def most(families: Iterable[Sequence[float]], low: float, high: float, limit: int, room: float) -> list[float]:
    """The family with the most places between the ends, at most so many, none nearer to the next than `room`.

    families: increasing, above 0. room: a share of the axis. Empty where no family has a place.
    """
    length = math.log(high / low)
    sets = [[place for place in family if EDGE <= math.log(place / low) / length <= 1 - EDGE] for family in families]
    fitting = [each for each in sets if len(each) <= limit and least_gap(each) >= room * length]
    return max(fitting, key=len, default=[])


def least_gap(places: Sequence[float]) -> float:
    return min((math.log(after / before) for before, after in pairwise(places)), default=math.inf)
