"""One run of a workload on a target, and the run that an arm of an ablation is measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..config import Config
from .metrics import summarise
from .objective import Objective
from .served import Served
from .workload import Workload

OnServed = Callable[[Served], None]
"""Told of each request as soon as it is answered or has failed."""
ShouldStop = Callable[[], bool]
"""Asked between steps; True ends the run with what was answered so far."""


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a workload."""

    served: tuple[Served, ...]
    """In the order of the workload; of a run that was stopped, those that were answered."""
    seconds: float
    """From the start to the last answer."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """What the target told beside its answers, by the names of `metrics.EXTRAS`."""
    plan_hash: str = ""
    """Of our engine's plan; empty of another target."""
    environment: str = ""
    client_cpu_seconds: float = 0.0
    """CPU time that sending, receiving and noting took; in this process, without the engine's steps."""
    is_whole: bool = True
    """False if it was stopped."""

    def metrics(self, objective: Objective | None = None, price_per_hour: float | None = None) -> dict[str, float]:
        """By name, see `metrics.METRICS`."""
        extras = {**self.extras, "client_cpu_seconds": self.client_cpu_seconds}
        return summarise(self.served, self.seconds, extras, objective, price_per_hour)


def measure_arm(config: Config, workload: Workload, *, warm: bool) -> Run:
    """Build the engine of `config` in this process, warm it up, run the workload and close it.

    warm: run the workload itself once before, so that whatever remembers prompts has seen these. Raises ConfigError,
    ModelError or PluginError where the engine cannot start, and ConfigError for a workload that does not fit.
    """
    from ..gateway.llm import LLM
    from .in_process import run_in_process, warm_up

    with LLM.from_config(config) as llm:
        warm_up(llm)
        if warm:
            run_in_process(llm, workload)
        return run_in_process(llm, workload)
