"""When requests come: evenly, at random or in bursts at a rate, or as clients that ask again when they are answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import ConfigError
from ..records import FloatArray
from .agenda import chains_of
from .workload import Ask, Workload

POISSON = 1.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come. Raises ConfigError for what no stream of requests can be."""

    rate: float = math.inf
    """Requests a second, on average; infinite: all at once."""
    variation: float = POISSON
    """Standard deviation of the gaps between them over their mean: 0 is even, 1 a Poisson process, more means bursts.
    Gaps are gamma distributed, with 1 / variation^2 for a shape."""
    num_clients: int | None = None
    """A closed loop of so many clients instead: each asks again when it is answered."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"an arrival rate of {self.rate:g} requests a second brings none: it must be more than 0")
        if not 0 <= self.variation <= 100:
            raise ConfigError(f"the variation of the gaps is {self.variation:g}: it must be from 0 to 100")
        if self.num_clients is not None and self.num_clients < 1:
            raise ConfigError(f"{self.num_clients} clients ask nothing: a closed loop needs at least one")
        if self.num_clients is not None and self.rate != math.inf:
            raise ConfigError("a closed loop has no rate, since its clients ask when they are answered: give only one")

    def times(self, count: int, seed: int) -> FloatArray:
        """`[count]` seconds after the start, the first at 0."""
        if self.rate == math.inf:
            return np.zeros(count)
        return np.concatenate([[0.0], np.cumsum(self.gaps(count - 1, seed))])

    def gaps(self, count: int, seed: int) -> FloatArray:
        """`[count]` seconds between one request and the next."""
        if self.variation == 0:
            return np.full(count, 1 / self.rate)
        shape = 1 / self.variation**2
        # of a seed, the gaps of two rates are in proportion
        return np.random.default_rng([seed, 0xA221]).standard_gamma(shape, count) / (shape * self.rate)

    def of(self, workload: Workload) -> Workload:
        """The same requests, coming like this. A conversation comes as a whole: its later turns wait for answers."""
        chains = chains_of(workload)
        starts = self.times(len(chains), workload.seed)
        arrival_of = {index: float(start) for chain, start in zip(chains, starts, strict=True) for index in chain}
        asks = [replace(ask, arrival=arrival_of[index]) for index, ask in enumerate(workload.asks)]
        about = {"variation": self.variation} if self.num_clients is None and self.rate != math.inf else {}
        if self.num_clients is not None:
            about["num_clients"] = self.num_clients
        if self.rate != math.inf:
            about["rate"] = self.rate
        return replace(workload, asks=in_order(asks), num_clients=self.num_clients, about={**workload.about, **about})


AT_ONCE = Arrivals()


def in_order(asks: Sequence[Ask]) -> tuple[Ask, ...]:
    """By arrival; those that come together keep their order."""
    return tuple(sorted(asks, key=lambda ask: ask.arrival))


def mean_rate(workload: Workload) -> float:
    """Requests or conversations a second; infinite where all come at once."""
    starts = [workload.asks[chain[0]].arrival for chain in chains_of(workload)]
    span = max(starts) - min(starts)
    return (len(starts) - 1) / span if span else math.inf


def at_rate(workload: Workload, rate: float, variation: float = POISSON) -> Workload:
    """The same requests at another mean rate: their own times stretched, or drawn where all come at once.

    With one seed, the times of two rates are in proportion.
    """
    own = mean_rate(workload)
    if own == math.inf:
        return Arrivals(rate, variation).of(workload)
    asks = tuple(replace(ask, arrival=ask.arrival * own / rate) for ask in workload.asks)
    return replace(workload, asks=asks, about={**workload.about, "rate": rate})
