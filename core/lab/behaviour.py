"""What a bisection asks of a set of plugins: are its outputs others than everything-off's, is a metric past a bound?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median
from typing import Literal, Protocol

from ..config import Config, unknown
from ..errors import ConfigError
from ..records import TOKEN_EQUAL
from .equality import Said, complaint
from .measured import ArmFailed, Measured, Runner
from .metrics import METRICS
from .workload import Workload

TIMEOUT = 600.0
"""Seconds that one run is given."""
ALL_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one set."""

    outcome: Literal["differs", "same", "refused"]
    text: str = ""
    """The first difference, the metric's value, or the reason of a refusal."""


class Behaviour(Protocol):
    """Asked of sets, one after the other."""

    def of(self, config: Config) -> Trial:
        """Raises PluginError where the engine refuses the set."""


class OtherOutputs:
    """Differs if a caller gets other tokens than from everything-off, with a cold cache or with a warm one.

    is_strict: any other token counts; else only those at places where everything-off is not undecided.
    """

    def __init__(
        self, runner: Runner, workload: Workload, off: Config, caches: tuple[str, ...], is_strict: bool = False
    ) -> None:
        self.runner = runner
        self.workload = workload
        self.off = off
        self.caches = caches
        self.is_strict = is_strict
        self.expected = [answer.token_ids for answer in self._run(off, "cold").answers]

    def _run(self, config: Config, cache: str) -> Measured:
        return self.runner.measure(config, self.workload, warm=cache == "warm", timeout=TIMEOUT)

    def of(self, config: Config) -> Trial:
        for cache in self.caches:
            try:
                measured = self._run(config, cache)
            except ArmFailed as error:
                return Trial("differs", f"{cache} cache: {error}")
            if problem := self._problem(config, measured):
                return Trial("differs", f"{cache} cache: {problem}")
        return Trial("same")

    def _problem(self, config: Config, measured: Measured) -> str:
        if problem := complaint(self.workload, measured.answers):
            return problem
        for answer, expected in zip(measured.answers, self.expected, strict=True):
            if self.is_strict and answer.token_ids != expected:
                place = first_difference(answer.token_ids, expected)
                return f"request {answer.index} differs from everything-off at position {place}"
        if [answer.token_ids for answer in measured.answers] == self.expected:
            return ""
        said = Said("the set", config, TOKEN_EQUAL, measured.answers)
        [verdict] = self.runner.check(self.off, self.workload, [said], max_tokens=ALL_TOKENS, seed=0)
        return verdict.problem


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound on a metric, in its own unit or in multiples of what everything-off has."""

    metric: str
    is_above: bool
    """Whether values above the bound count, or those below it."""
    bound: float
    is_relative: bool

    def __str__(self) -> str:
        return f"{self.metric}{'>' if self.is_above else '<'}{self.bound:g}{'x' if self.is_relative else ''}"


def parse_threshold(text: str) -> Threshold:
    """As written: `ttft_p99>0.5`, `output_tokens_per_s<100`, or `tpot_p50>2x` for twice. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\w+)\s*([<>])\s*([0-9.eE+-]+?)(x?)\s*", text)
    try:
        if match is None:
            raise ValueError
        metric, sign, bound, relative = match.groups()
        threshold = Threshold(metric, sign == ">", float(bound), bool(relative))
    except ValueError:
        raise ConfigError(
            f"cannot read threshold {text!r}: write METRIC>VALUE or METRIC<2x, as in ttft_p99>0.5"
        ) from None
    if metric not in METRICS:
        raise ConfigError(unknown("metric", metric, METRICS))
    return threshold


class PastThreshold:
    """Differs if the median of a metric over a few runs lies past a bound."""

    def __init__(
        self, runner: Runner, workload: Workload, off: Config, cache: str, threshold: Threshold, num_runs: int = 3
    ) -> None:
        self.runner = runner
        self.workload = workload
        self.cache = cache
        self.threshold = threshold
        self.num_runs = num_runs
        self.bound = threshold.bound * (self.value(off) if threshold.is_relative else 1.0)

    def value(self, config: Config) -> float:
        """Raises ConfigError if a run does not have the metric."""
        values = []
        for _ in range(self.num_runs):
            measured = self.runner.measure(config, self.workload, warm=self.cache == "warm", timeout=TIMEOUT)
            if self.threshold.metric not in measured.metrics:
                raise ConfigError(
                    f"a run of this workload has no {self.threshold.metric}: {complaint_or_why(self, measured)}"
                )
            values.append(measured.metrics[self.threshold.metric])
        return median(values)

    def of(self, config: Config) -> Trial:
        try:
            value = self.value(config)
        except ArmFailed as error:
            return Trial("differs", str(error))
        is_past = value > self.bound if self.threshold.is_above else value < self.bound
        return Trial(
            "differs" if is_past else "same", f"{self.threshold.metric} is {value:.4g}, the bound {self.bound:.4g}"
        )


def complaint_or_why(behaviour: PastThreshold, measured: Measured) -> str:
    return complaint(behaviour.workload, measured.answers) or f"it has {', '.join(measured.metrics)}"
