"""A profile: what an engine's steps take on this machine, and the cost model that says so in one formula."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..engine.build import find
from ..gateway.llm import LLM
from ..plan import EffectivePlan
from .cost_model import CostModel
from .episodes import Point, Room, Rounds, make_episodes
from .fit import CostPoint, Residuals, fit
from .machine import Machine, this_machine, versions
from .plugin_costs import Costs, import_seconds, measure_costs
from .roofline import Measured, measure_machine
from .thresholds import Crossover, FreeChunk, crossover, free_chunk
from .timed_steps import TimedEngine

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Profile:
    """All that was measured, and what follows from it."""

    plan: EffectivePlan
    machine: Machine
    versions: dict[str, str]
    ceilings: Measured
    """The hardware's two numbers."""
    points: tuple[Point, ...]
    model: CostModel
    fitted: Residuals
    held_out: Residuals
    """At points that the fit never saw."""
    crossover: Crossover
    chunk: FreeChunk
    costs: Costs | None
    costs_problem: str
    """Why there are none; empty if there are."""
    num_rounds: int
    startup_seconds: float
    seconds: float
    """Of the whole profile."""

    def decode_points(self) -> list[Point]:
        return sorted_points(self.points, "decode")

    def prefill_points(self) -> list[Point]:
        return sorted_points(self.points, "prefill")

    @property
    def max_rows(self) -> int:
        """The most that decoded in one step."""
        return max(point.counts.num_rows for point in self.points)

    def to_json(self) -> dict[str, Any]:
        """The file that a simulation reads: a cost model, with the profile behind it."""
        plan = self.plan
        profile = {
            "model": plan.model,
            "dtype": plan.dtype,
            "plan": plan.hash,
            "environment": plan.environment,
            "plugins": [plugin.name for plugin in plan.plugins],
            "versions": self.versions,
            "machine": asdict(self.machine),
            "ceilings": asdict(self.ceilings),
            "num_rounds": self.num_rounds,
            "startup_seconds": self.startup_seconds,
            "seconds": self.seconds,
            "fit": {"fitted": self.fitted.table(), "held_out": self.held_out.table()},
            "crossover": asdict(self.crossover),
            "chunk": asdict(self.chunk),
            "costs": asdict(self.costs) if self.costs else None,
            "costs_problem": self.costs_problem,
            "points": [point_table(point, self.model) for point in self.points],
        }
        return {**self.model.to_json(), "profile": profile}


def make_profile(
    config: Config,
    budget: float,
    *,
    imports: Mapping[str, float] | None = None,
    has_costs: bool = True,
    progress: Progress = lambda _: None,
) -> Profile:
    """Start the engine of a config and measure it. Takes about `budget` seconds, and all of the machine.

    imports: seconds that each plugin's module took, where they were imported before. has_costs: also start it once
    more, with clocks around what plugins answered. Raises what a start raises.
    """
    started = time.perf_counter()
    # first, since later they are imported already
    imports = import_seconds(config) if imports is None else imports
    machine = this_machine()
    progress("starting the engine")
    before = time.perf_counter()
    llm = LLM.from_config(config)
    startup_seconds = time.perf_counter() - before
    try:
        spec = find(config).spec
        progress("measuring the machine")
        ceilings = measure_machine(machine, spec, llm.plan.dtype)
        engine = TimedEngine(llm)
        rounds = Rounds(
            engine,
            make_episodes(room_of(llm)),
            budget - (time.perf_counter() - started),
            on_round=lambda number, seconds: progress(f"round {number} of steps, {seconds:.0f} s"),
        )
        points = rounds.run()
        engine.close()
        plan = llm.plan
    finally:
        llm.close()
    progress("what plugins cost")
    costs, problem = try_costs(config, imports) if has_costs else (None, "not asked for")
    model, fitted, held_out = fit_points(points, plan, machine)
    itemsize: int = getattr(torch, plan.dtype).itemsize
    return Profile(
        plan=plan,
        machine=machine,
        versions=versions(),
        ceilings=ceilings,
        points=tuple(points),
        model=model,
        fitted=fitted,
        held_out=held_out,
        crossover=crossover(points, spec, itemsize, ceilings.ceilings(plan.dtype)),
        chunk=free_chunk(points),
        costs=costs,
        costs_problem=problem,
        num_rounds=rounds.num_rounds,
        startup_seconds=startup_seconds,
        seconds=time.perf_counter() - started,
    )


def check_profile(config: Config) -> int:
    """The longest sequence that the engine of a config takes. Reads no weights; raises what a start raises."""
    llm = LLM.from_config(config, load=False)
    try:
        return llm.plan.max_model_len
    finally:
        llm.close()


def room_of(llm: LLM) -> Room:
    plan = llm.plan
    return Room(plan.max_num_seqs, plan.max_model_len, plan.kv_num_blocks * plan.kv_block_size, plan.kv_block_size)


def try_costs(config: Config, imports: Mapping[str, float]) -> tuple[Costs | None, str]:
    """The costs, or why there are none: a plugin may look behind what stands before another one's answer."""
    try:
        return measure_costs(config, imports), ""
    except Exception as error:
        return None, f"the engine does not run with clocks around its plugins: {type(error).__name__}: {error}"


def fit_points(points: list[Point], plan: EffectivePlan, machine: Machine) -> tuple[CostModel, Residuals, Residuals]:
    plugins = ", ".join(plugin.name for plugin in plan.plugins) or "everything off"
    source = f"switchgear {plan.version} profile of plan {plan.hash}, environment {plan.environment}"
    model = fit(pairs(points, False), f"{plan.model}, {plan.dtype}; {plugins}", source, str(machine))
    return model, Residuals.of(model, pairs(points, False)), Residuals.of(model, pairs(points, True))


def pairs(points: list[Point], is_held_out: bool) -> list[CostPoint]:
    return [(point.counts, point.median) for point in points if point.is_held_out == is_held_out]


def sorted_points(points: tuple[Point, ...], kind: str) -> list[Point]:
    chosen = [point for point in points if point.kind == kind]
    return sorted(chosen, key=lambda point: (point.num_prompt, point.counts.num_tokens, point.counts.num_pairs))


def point_table(point: Point, model: CostModel) -> dict[str, Any]:
    return {
        "kind": point.kind,
        **asdict(point.counts),
        "seconds": point.median,
        "spread": point.spread,
        "num_times": len(point.seconds),
        "executor_seconds": point.executor_median,
        "model_seconds": model.seconds(point.counts),
        "is_held_out": point.is_held_out,
    }


def engine_share(points: tuple[Point, ...]) -> float:
    """Of decode steps, what is the engine's own and not the forward: plan, sampling, text. Median over the points."""
    shares = [1 - point.executor_median / point.median for point in points if point.kind == "decode"]
    return float(np.median(shares)) if shares else 0.0
