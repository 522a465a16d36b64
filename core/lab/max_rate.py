"""The highest arrival rate that keeps an objective: doubled or halved until it is bracketed, then bisected.

Capacity as Sarathi-Serve (2403.02310) and DistServe (2401.09670) have it: the largest rate at which a stated share of
requests meets a bound on TTFT and one on TPOT.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for. Raises ConfigError."""

    attainment: float = 0.9
    """Share of the requests that must meet the objective."""
    first_rate: float = 1.0
    """Where to begin, in requests a second."""
    precision: float = 0.05
    """The search ends when the lowest rate that fails is at most so much more than the highest that does not."""
    max_probes: int = 12

    def __post_init__(self) -> None:
        if not 0 < self.attainment <= 1:
            raise ConfigError(f"the attainment is {self.attainment:g}: it must be more than 0 and at most 1")
        if not 0 < self.first_rate < math.inf:
            raise ConfigError(f"the first rate is {self.first_rate:g} requests a second: it must be more than 0")
        if not self.precision > 0:
            raise ConfigError(f"the precision is {self.precision:g}: it must be more than 0")
        if self.max_probes < 1:
            raise ConfigError(f"{self.max_probes} probes find nothing: there must be at least one")


@dataclass(frozen=True, slots=True)
class Bracket:
    """What the probes have shown so far."""

    kept: float | None = None
    """The highest rate that kept the objective."""
    missed: float | None = None
    """The lowest that did not."""
    num_probes: int = 0

    def is_narrow(self, precision: float) -> bool:
        return self.kept is not None and self.missed is not None and self.missed <= self.kept * (1 + precision)

    def next_rate(self, first_rate: float) -> float:
        match self.kept, self.missed:
            case None, None:
                return first_rate
            case float(kept), None:
                return 2 * kept
            case None, float(missed):
                return missed / 2
            case float(kept), float(missed):
                return math.sqrt(kept * missed)
        raise AssertionError("rates are floats")


Probe = Callable[[float, int], float | None]
"""Measures the attainment at a rate, told which probe it is, from 0; None if it was stopped."""


def max_rate(probe: Probe, search: Search) -> Bracket:
    """Probe until the bracket is narrow, or `max_probes` are spent, or a probe is stopped."""
    bracket = Bracket()
    while bracket.num_probes < search.max_probes and not bracket.is_narrow(search.precision):
        rate = float(bracket.next_rate(search.first_rate))
        attainment = probe(rate, bracket.num_probes)
        if attainment is None:
            break
        is_kept = attainment >= search.attainment
        bracket = Bracket(
            kept=rate if is_kept else bracket.kept,
            missed=bracket.missed if is_kept else rate,
            num_probes=bracket.num_probes + 1,
        )
    return bracket
