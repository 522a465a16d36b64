"""What the experiments share: expected and obtained figures side by side, a verdict, and the search for a capacity."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from switchgear.core.cli.output import print_table
from switchgear.core.lab.cost_model import CostModel
from switchgear.core.lab.max_rate import Search, max_rate

PRECISION = 0.05
"""Of a capacity."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="draws lengths and times (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


@dataclass(frozen=True, slots=True)
class Expected:
    """A figure, where it has to lie, and what others found. Without bounds it is only shown."""

    what: str
    obtained: float
    at_least: float = -math.inf
    at_most: float = math.inf
    papers: float | None = None

    @property
    def is_met(self) -> bool:
        return self.at_least <= self.obtained <= self.at_most

    @property
    def bounds(self) -> str:
        low = [f"at least {self.at_least:g}"] if self.at_least > -math.inf else []
        high = [f"at most {self.at_most:g}"] if self.at_most < math.inf else []
        return " and ".join(low + high)

    @property
    def verdict(self) -> str:
        return "" if not self.bounds else "PASS" if self.is_met else "FAIL"

    def row(self) -> tuple[str, ...]:
        papers = "" if self.papers is None else f"{self.papers:g}"
        return self.what, f"{self.obtained:.3g}", self.bounds, papers, self.verdict

    def table(self) -> dict[str, object]:
        known = {key: value for key, value in asdict(self).items() if value not in (math.inf, -math.inf)}
        return {**known, "is_met": self.is_met}


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment found. The same seed gives the same to the last digit."""

    title: str
    seed: int
    expected: tuple[Expected, ...]
    figures: Mapping[str, float]
    """What the ratios are made of."""
    cost_model: CostModel

    @property
    def is_met(self) -> bool:
        return all(each.is_met for each in self.expected)

    def show(self, as_json: bool) -> int:
        """Print it; the program's exit status."""
        if as_json:
            print(json.dumps(self.table(), indent=2))
        else:
            print(self.title)
            print(f"costs: {self.cost_model.name} on {self.cost_model.machine}; {self.cost_model.source}\n")
            print_table(("figure", "value"), [(name, f"{value:.4g}") for name, value in self.figures.items()])
            print()
            rows = [each.row() for each in self.expected]
            print_table(("expected", "obtained", "asked", "found before", ""), rows)
        return 0 if self.is_met else 1

    def table(self) -> dict[str, object]:
        return {
            "title": self.title,
            "seed": self.seed,
            "cost_model": self.cost_model.to_json(),
            "figures": dict(self.figures),
            "expected": [each.table() for each in self.expected],
        }


def highest_rate(keeps: Callable[[float], bool], first_rate: float) -> float:
    """The highest rate in requests a second that keeps what is asked, by bisection. Raises ValueError if none does."""
    search = Search(attainment=1.0, first_rate=first_rate, precision=PRECISION, max_probes=20)
    bracket = max_rate(lambda rate, _: float(keeps(rate)), search)
    if bracket.kept is None or bracket.missed is None:
        raise ValueError(f"no capacity was found: {bracket}")
    return bracket.kept
