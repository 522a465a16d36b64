"""Runs that take no time: metrics from planted factors and seeded noise, under a clock that the runs move on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from switchgear.core.config import Config
from switchgear.core.lab.arms import Planned, common_of
from switchgear.core.lab.designs import make_design
from switchgear.core.lab.equality import Answer, Said, Verdict
from switchgear.core.lab.measured import Measured
from switchgear.core.lab.study import Study
from switchgear.core.lab.workload import Ask, Segment, Workload

WORKLOAD = Workload("two", tuple(Ask(0.0, 2, (Segment(key, 3),)) for key in range(2)), about={"num_requests": 2})
ANSWERS = tuple(Answer(index, (5, 6 + index), "", "length") for index in range(2))
Factor = Callable[[frozenset[str]], float]


class SimulatedRunner:
    """factor: of `output_tokens_per_s`, for the plugins that are on. seconds: of each run. drift: of the n-th run."""

    def __init__(
        self,
        factor: Factor = lambda on: 1.0,
        *,
        noise: float = 0.02,
        seed: int = 0,
        seconds: float = 10.0,
        drift: Callable[[int], float] = lambda number: 1.0,
        broken: Mapping[frozenset[str], str] | None = None,
    ) -> None:
        self.factor = factor
        self.noise = noise
        self.generator = np.random.default_rng(seed)
        self.seconds = seconds
        self.drift = drift
        self.broken = broken or {}
        self.now = 0.0
        self.runs: list[tuple[frozenset[str], bool]] = []
        self.num_checked = 0

    def clock(self) -> float:
        return self.now

    def measure(self, config: Config, workload: Workload, *, warm: bool, timeout: float) -> Measured:
        on = frozenset(entry.name for entry in config.plugins)
        level = self.factor(on) * self.drift(len(self.runs)) * float(np.exp(self.generator.normal(0, self.noise)))
        self.runs.append((on, warm))
        self.now += self.seconds
        metrics = {"output_tokens_per_s": 100 * level, "ttft_p50": 0.5 / level, "tpot_p50": 0.02 / level}
        metrics |= {"e2e_p50": 1.0 / level, "prefix_hit_rate": 0.0, "errors": 0.0}
        return Measured(plan_name(config), "environment", 1 / level, 0.01, metrics, (0.5, 0.6), (0.02, 0.03), ANSWERS)

    def check(
        self, off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int
    ) -> list[Verdict]:
        self.now += 1.0
        self.num_checked += len(said)
        return [self.verdict(each) for each in said]

    def verdict(self, said: Said) -> Verdict:
        problem = self.broken.get(frozenset(entry.name for entry in said.config.plugins), "")
        return Verdict(said.arm, str(said.equivalence), 4, 0, 1e-4, holds=not problem, problem=problem)


def plan_name(config: Config) -> str:
    return " ".join(f"{entry.name}{dict(entry.options)}" for entry in config.plugins)


def study_of(
    config: Config,
    design: str,
    *,
    refused: Mapping[str, str] | None = None,
    classes: Sequence[type] = (),
    vary: Mapping[str, Sequence[object]] | None = None,
    **options: object,
) -> tuple[Study, dict[str, Planned]]:
    """A study without a model. refused: arms by name, and why."""
    common = common_of(config, classes=classes)
    made = make_design(design, common.switches, common.requires, vary=vary)
    plans = {}
    for arm in made.arms:
        reason = (refused or {}).get(arm.name, "")
        hash = "" if reason else plan_name(common.config_of(arm.on, arm.varied))
        plans[arm.name] = Planned(reason, hash, "environment", ("a plan",))
    return Study(common, made, WORKLOAD, **options), plans  # type: ignore[arg-type]  # fields of Study
