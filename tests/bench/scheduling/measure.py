"""What the commands of this folder share: options, a quiet machine, arms in turn, a table and a verdict."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from switchgear import LLM

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
MAX_LOAD = 0.5
"""Processes that may want a core when a command begins; what it measures is only worth something on a quiet machine."""
SECONDS_TO_WAIT = 180
"""For the load average to forget what ran before."""

Measured = TypeVar("Measured")
Plugins = Mapping[str, Mapping[str, Any]]
"""By name, with their options."""


# -- options --------------------------------------------------------------------------------------------------------


def options(
    description: str | None, *, num_runs: int = 0, has_model: bool = False, has_data: bool = False
) -> argparse.ArgumentParser:
    """A parser with what every command of its kind takes. num_runs: by default, 0 for a command that times nothing."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if num_runs:
        parser.add_argument("--runs", type=int, default=num_runs, help="runs of each arm (%(default)s)")
        parser.add_argument("--noisy", action="store_true", help="measure even where other programs run")
    if has_model:
        parser.add_argument("--model", default="smollm2-135m", help="(%(default)s)")
        parser.add_argument("--dtype", default="bfloat16", help="(%(default)s)")
    if has_data:
        parser.add_argument("--data", type=Path, default=DATA, help="folder that holds traces/ (beside the checkout)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def trace(args: argparse.Namespace, name: str) -> Path:
    """A file of the data folder; ends the program where it is not there."""
    path: Path = args.data / "traces" / name
    if not path.is_file():
        sys.exit(f"there is no {path}: name the folder that holds traces/ with --data")
    return path


def require_quiet(args: argparse.Namespace) -> None:
    """Wait until nothing else runs, and end the program if that does not happen."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while not args.noisy and os.getloadavg()[0] > MAX_LOAD:
        if time.monotonic() > end:
            sys.exit(f"the load average is {os.getloadavg()[0]:.2f}: end what else runs, or measure with --noisy")
        time.sleep(5)


# -- measuring ------------------------------------------------------------------------------------------------------


def open_llm(args: argparse.Namespace, plugins: Plugins, *, kv_tokens: int, **engine: Any) -> LLM:
    """The model with KV for `kv_tokens` tokens, in whatever blocks; engine: as for `LLM`."""
    from switchgear import LLM

    return LLM(args.model, dtype=args.dtype, plugins=plugins, kv_bytes=kv_tokens * kv_bytes_per_token(args), **engine)


def kv_bytes_per_token(args: argparse.Namespace) -> int:
    """Of the model, over all its layers."""
    from switchgear import LLM
    from switchgear.core.config import build_config

    config = build_config(recipe="all_off", sections={"model": {"name": args.model, "dtype": args.dtype}})
    plan = LLM.from_config(config, load=False).plan
    return plan.kv_bytes // (plan.kv_num_blocks * plan.kv_block_size)


def random_ids(generator: np.random.Generator, length: int, vocab_size: int) -> list[int]:
    """A prompt of `length` token ids."""
    ids: list[int] = generator.integers(0, vocab_size, length).tolist()
    return ids


def in_turn(arms: Mapping[str, Callable[[int], Measured]], num_runs: int) -> dict[str, list[Measured]]:
    """Run the arms A B A B ..., each `num_runs` times after a first one that only warms up.

    An arm is called with the number of its run. What it needs is built before, so that only its work is measured.
    """
    measured: dict[str, list[Measured]] = {name: [] for name in arms}
    for run in range(num_runs + 1):
        for name, arm in arms.items():
            gc.collect()
            value = arm(run)
            if run:
                measured[name].append(value)
    return measured


class Spread(NamedTuple):
    """The median of some runs, and the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(self.low)} to {shown(self.high)})"


def shown(value: float) -> str:
    """Four digits, and never a power of ten."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Of runs that stood side by side."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


class Stopwatch:
    """Adds up the seconds spent in methods, nested ones included, from the inside of a run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: object, *methods: str) -> None:
        for method in methods:
            setattr(owner, method, self._timed(getattr(owner, method)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self.seconds += time.perf_counter() - start

        return timed

    def lap(self) -> float:
        """Seconds since the last lap."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


# -- reporting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, and where it has to lie."""

    what: str
    figure: float | Spread
    """Of runs, the median counts."""
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def is_met(self) -> bool:
        value = self.figure.median if isinstance(self.figure, Spread) else self.figure
        return self.at_least <= value <= self.at_most

    def __str__(self) -> str:
        figure = str(self.figure) if isinstance(self.figure, Spread) else shown(self.figure)
        low = [f"at least {self.at_least:g}"] if self.at_least > -math.inf else []
        high = [f"at most {self.at_most:g}"] if self.at_most < math.inf else []
        return f"{'PASS' if self.is_met else 'FAIL'}  {self.what}: {figure}, target {' and '.join(low + high)}"


@dataclass(slots=True)
class Report:
    """What a command found."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    targets: list[Target]
    plans: Mapping[str, str] = field(default_factory=dict)
    """The plan's hash of each arm that ran a model."""
    notes: tuple[str, ...] = ()

    def show(self, args: argparse.Namespace) -> int:
        """Print it, as a table or as JSON; the program's exit status."""
        print(self._json() if args.json else self)
        return 0 if all(target.is_met for target in self.targets) else 1

    def __str__(self) -> str:
        lines = [self.title, f"machine  {machine()}"]
        lines += [f"plan     {name}: {hash}" for name, hash in self.plans.items()]
        lines += ["", *table(self.columns, self.rows), "", *self.notes, *map(str, self.targets)]
        return "\n".join(lines)

    def _json(self) -> str:
        report = {
            "title": self.title,
            "machine": machine(),
            "plans": dict(self.plans),
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": self.notes,
            "targets": [
                {"what": each.what, "figure": each.figure, "is_met": each.is_met, "text": str(each)}
                for each in self.targets
            ],
        }
        return json.dumps(report, indent=2)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with the first column to the left and the others to the right."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def machine() -> str:
    """Processor, cores, Python, and torch with its threads if it was loaded."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    parts = [name, f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    torch = sys.modules.get("torch")
    if torch is not None:
        parts.append(f"torch {torch.__version__} on {torch.get_num_threads()} threads")
    return ", ".join([*parts, f"load {os.getloadavg()[0]:.2f}"])
