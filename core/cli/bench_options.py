"""What the kinds of `switchgear bench` share: points, runs, what is on, and what every figure is stamped with."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import Config
from ..errors import ConfigError
from ..lab.points import STANDARD_POINTS, Point, parse_points
from .options import add_config_options, config_from

if TYPE_CHECKING:
    from ..lab.machine import Machine
    from ..plan import EffectivePlan

RUNS = 3


def add_bench_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--points",
        default=STANDARD_POINTS,
        metavar="NxIxO,...",
        help="points: requests x input tokens x output tokens (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each point (default: %(default)s)")
    add_config_options(parser)


def points_from(arguments: Namespace) -> tuple[Point, ...]:
    """The points that were asked for. Raises ConfigError."""
    if arguments.runs < 1:
        raise ConfigError(f"--runs is {arguments.runs}: a point needs at least one run")
    return parse_points(arguments.points)


def bench_config(arguments: Namespace) -> Config:
    """The config that was asked for; where none was, the recommended recipe without its prefix cache.

    Random prompts have nothing in common, so that a cache of them could only cost.
    """
    config = config_from(arguments)
    if arguments.config or arguments.recipe or "prefix_cache" in arguments.on:
        return config
    kept = tuple(plugin for plugin in config.plugins if plugin.name != "prefix_cache")
    return msgspec.structs.replace(config, plugins=kept)


def stamp(plan: EffectivePlan, machine: Machine, versions: dict[str, str]) -> dict[str, Any]:
    """What a figure in JSON is worth nothing without."""
    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "plan": plan.hash,
        "environment": plan.environment,
        "versions": versions,
        "machine": asdict(machine),
    }


def print_heading(plan: EffectivePlan, machine: Machine, versions: dict[str, str], notes: Sequence[str] = ()) -> None:
    """The same for a person, with a line for each note."""
    plugins = ", ".join(plugin.name for plugin in plan.plugins) or "none"
    print(f"plan     {plan.hash}  environment {plan.environment}")
    print(f"model    {plan.model}, {plan.dtype}; plugins: {plugins}")
    print(f"machine  {machine}")
    print(f"with     {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(*notes, sep="\n", end="\n\n")
