"""What a user can live with: a bound on the time to the first token and on the time of each one after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from .served import Served


@dataclass(frozen=True, slots=True)
class Objective:
    """Bounds in seconds on what one request may take. Raises ConfigError for one that nothing can meet."""

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        for name, bound in (("TTFT", self.ttft), ("TPOT", self.tpot)):
            if not bound > 0:
                raise ConfigError(f"the objective's {name} is {bound:g} s: it must be more than 0")

    def __str__(self) -> str:
        return f"TTFT at most {self.ttft:g} s, TPOT at most {self.tpot:g} s"

    def is_met(self, served: Served) -> bool:
        """A request that failed, or brought no token, meets nothing; one of a single token has no TPOT to miss."""
        return not served.error and served.ttft <= self.ttft and not served.tpot > self.tpot

    def attainment(self, served: Sequence[Served]) -> float:
        """The share of requests that meet it, failed ones counted in. There must be one."""
        return sum(map(self.is_met, served)) / len(served)
