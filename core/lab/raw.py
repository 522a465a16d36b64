"""Raw speed of our engine: all requests of a point at once, random prompts, greedy, so many tokens whatever they are.

The definition is that by which other engines are measured: ids from 1,000 to 39,999 drawn from seed 0, one warm-up of
two requests, fresh prompts for every run, and the best run counts. So lines of all of them stand in one table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..config import Config
from ..engine.build import find
from ..errors import ConfigError, RequestError
from ..model.spec import ModelSpec
from ..plan import EffectivePlan
from ..sampling_params import SamplingParams
from .points import Point

PEER = "switchgear"
WARM_UP = Point(2, 32, 8)
FIRST_ID, END_ID = 1000, 40000
"""Prompts are drawn from these ids, where the vocabulary has them: past the special ones of most models."""


@dataclass(frozen=True, slots=True)
class RawSpeed:
    """One point, run several times."""

    point: Point
    seconds: tuple[float, ...]
    """Of each run, from the first request that enters to the last that is answered."""

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The later one of the two in the middle of an even number of runs."""
        return sorted(self.seconds)[len(self.seconds) // 2]

    @property
    def output_tokens_per_s(self) -> float:
        return self.point.num_requests * self.point.output_len / self.best

    @property
    def total_tokens_per_s(self) -> float:
        return self.point.num_requests * self.point.sequence_len / self.best

    def line(self) -> dict[str, Any]:
        """As every engine's figures are written, one JSON object a point."""
        return {
            "peer": PEER,
            "num_requests": self.point.num_requests,
            "input_len": self.point.input_len,
            "output_len": self.point.output_len,
            "seconds_min": round(self.best, 4),
            "seconds_median": round(self.median, 4),
            "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "total_tokens_per_s": round(self.total_tokens_per_s, 1),
        }


class RawEngine:
    """An engine that is ready and warm, to be measured point by point.

    Raises ConfigError, ModelError or PluginError where it cannot start.
    """

    def __init__(self, config: Config) -> None:
        started = time.perf_counter()
        # part of what a start takes, as it is on the other sides
        from ..gateway.llm import LLM

        self.llm = LLM.from_config(config)
        self.startup_seconds = time.perf_counter() - started
        self.spec: ModelSpec = find(config).spec
        self.vocab_size = self.spec.vocab_size
        self.random = random.Random(0)
        self.run(WARM_UP)

    @property
    def plan(self) -> EffectivePlan:
        return self.llm.plan

    def check(self, points: Sequence[Point]) -> None:
        """Before anything is measured. Raises ConfigError for a point whose sequences are too long."""
        for point in points:
            if point.sequence_len > self.plan.max_model_len:
                raise ConfigError(
                    f"point {point} has sequences of {point.sequence_len} tokens and [engine] max_model_len is "
                    f"{self.plan.max_model_len}: raise it, or measure other --points"
                )

    def measure(self, point: Point, num_runs: int) -> RawSpeed:
        return RawSpeed(point, tuple(self.run(point) for _ in range(num_runs)))

    def run(self, point: Point) -> float:
        """Seconds that the point takes once. Raises RequestError if a request fails."""
        prompts = self.random_prompts(point)
        params = SamplingParams(max_tokens=point.output_len, ignore_eos=True, temperature=0.0)
        start = time.perf_counter()
        results = self.llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        if error := next(filter(None, (result.error for result in results)), ""):
            raise RequestError(error)
        assert all(len(result.token_ids) == point.output_len for result in results)
        return seconds

    def random_prompts(self, point: Point) -> list[list[int]]:
        """Other ones with every call."""
        first, end = (FIRST_ID, END_ID) if self.vocab_size >= END_ID else (0, self.vocab_size)
        draw = partial(self.random.randrange, first, end)
        return [[draw() for _ in range(point.input_len)] for _ in range(point.num_requests)]

    def close(self) -> None:
        self.llm.close()
