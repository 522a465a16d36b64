"""Our engine and the others that run here, at the same points, in turn: A B A B ..., and the ratios with their spread.

Each side is a process of its own that loads once; all but the one that is measured are stopped (SIGSTOP), so that none
takes a core from it. `setup.sh DIR` beside `raw.py` installs the others; transformers is taken from our own
environment where DIR has none. What is on is a matter of our side alone, and as for `switchgear bench raw`; the others
run the model in bfloat16, or in the four bits of its GGUF file.

Exit status 1 if a ratio is below what was asked of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from switchgear.core.cli.bench_options import add_bench_options, bench_config, points_from
from switchgear.core.cli.output import print_table
from switchgear.core.config import Config
from switchgear.core.errors import SwitchgearError
from switchgear.core.lab.machine import this_machine
from switchgear.core.lab.points import Point
from switchgear.core.model.store import resolve

RAW = Path(__file__).resolve().parents[3] / "shared" / "peers" / "raw.py"
OURS = "switchgear"
PEERS = ("vllm", "transformers", "openvino", "llamacpp")
FROM_GGUF = ("openvino", "llamacpp")
SECONDS_TO_END = 30

MODEL = "smollm2-135m"
TARGETS: Mapping[str, Mapping[str, float]] = {
    "1x16x64": {"vllm": 2.0, "transformers": 2.8},
    "4x16x64": {"vllm": 1.9, "transformers": 3.0},
    "16x16x64": {"vllm": 1.6, "transformers": 3.0},
    "64x16x64": {"vllm": 1.4, "transformers": 2.7},
    "1x1024x1": {"vllm": 1.15, "transformers": 1.15},
    "16x128x128": {"vllm": 1.5, "transformers": 2.6},
}
"""Least ratios of our median speed to theirs, for `MODEL` in bfloat16."""


class Spread(NamedTuple):
    """The median of some runs, and the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g} to {self.high:.4g})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


class Side:
    """One engine in its process, which computes only while it is asked."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        # a group of its own, so that what it starts is stopped with it
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, process_group=0
            )

    def open(self) -> dict[str, Any]:
        """Wait until it is ready: seconds of its start, and its version."""
        ready = self._answer()
        os.killpg(self.process.pid, signal.SIGSTOP)
        return ready

    def run(self, point: Point) -> float:
        """Seconds of one run."""
        assert self.process.stdin is not None
        os.killpg(self.process.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # of one that has ended, whose answer says so
            numbers = [point.num_requests, point.input_len, point.output_len]
            print(json.dumps(numbers), file=self.process.stdin, flush=True)
        seconds: float = self._answer()["seconds"]
        os.killpg(self.process.pid, signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):
            os.killpg(self.process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=SECONDS_TO_END)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise SideEnded(f"{self.name} ended by itself: {' '.join(last) or 'without a word'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class SideEnded(Exception):
    """A side ended before it answered."""


@dataclass(frozen=True, slots=True)
class Found:
    """The sides that can run here, and why the others cannot."""

    commands: dict[str, list[str]]
    missing: dict[str, str]


def find_sides(directory: Path | None, folder: Path, names: Sequence[str], config: Config) -> Found:
    """folder: holds the model as `raw.py` looks for it. config: of our side."""
    program = [str(Path(__file__).with_name("peer_process.py"))]
    commands = {OURS: [sys.executable, *program, OURS, msgspec.json.encode(config).decode()]}
    missing = {}
    for name in names:
        python = python_of(name, directory)
        if python is None:
            missing[name] = "not installed" if directory else "not installed; name the folder of setup.sh"
        elif name in FROM_GGUF and not (folder / "smollm2.gguf").exists():
            missing[name] = "reads the model from a GGUF file, which it does not have"
        else:
            commands[name] = [str(python), *program, name, str(folder), str(RAW)]
    return Found(commands, missing)


def python_of(name: str, directory: Path | None) -> Path | None:
    """The interpreter that has this engine."""
    python = directory / name / "bin" / "python" if directory else None
    if python is not None and python.exists():
        return python.absolute()
    return Path(sys.executable) if name == "transformers" and importlib.util.find_spec(name) else None


def link_model(name: str, folder: Path) -> None:
    """The weights that all sides read, under the names that `raw.py` gives them."""
    files = resolve(name, "bfloat16", progress=False)
    (folder / "smollm2-hf").symlink_to(files.directory)
    if files.source.is_file():
        (folder / "smollm2.gguf").symlink_to(files.source)


@contextlib.contextmanager
def opened(found: Found, folder: Path) -> Iterator[list[Side]]:
    """The sides, started one after the other, which is told; one that cannot start is left out."""
    sides: list[Side] = []
    with contextlib.ExitStack() as stack:
        for name, command in found.commands.items():
            side = Side(name, command, folder / f"{name}.log")
            stack.callback(side.close)
            try:
                ready = side.open()
            except SideEnded as error:
                print(error, flush=True)
                continue
            print(f"{name:<13}{ready['version']}, ready after {ready['startup_s']:.1f} s", flush=True)
            sides.append(side)
        for name, reason in found.missing.items():
            print(f"{name:<13}{reason}", flush=True)
        yield sides


def measure(sides: list[Side], point: Point, num_runs: int) -> dict[str, list[float]]:
    """Seconds of each side's runs, in turn, after one that only warms up.

    A peer that ends meanwhile is told and leaves the list: what it did at this point does not count.
    """
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for run in range(num_runs + 1):
        for side in [*sides]:
            try:
                taken = side.run(point)
            except SideEnded as error:
                if side.name == OURS:
                    raise
                print(f"{error}, at {point}: it is left out from there on", flush=True)
                sides.remove(side)
                del seconds[side.name]
                continue
            print(f"{point} run {run} {side.name} {taken:.3f} s", file=sys.stderr, flush=True)
            if run:
                seconds[side.name].append(taken)
    return seconds


def speeds_of(point: Point, seconds: Sequence[float]) -> Spread:
    """Output tokens a second; where there is only the first one, prompt tokens."""
    length = point.input_len if point.output_len == 1 else point.output_len
    return spread([point.num_requests * length / each for each in seconds])


def ratio_of(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as fast ours was, of runs that stood side by side."""
    return spread([a / b for a, b in zip(theirs, ours, strict=True)])


def report(seconds: Mapping[Point, Mapping[str, list[float]]], has_targets: bool) -> bool:
    """Print the table, and where a target is missed; whether none is."""
    rows, misses = [], []
    for point, by_side in seconds.items():
        for name, taken in by_side.items():
            ratio = ratio_of(taken, by_side[OURS]) if name != OURS else None
            target = TARGETS.get(str(point), {}).get(name) if has_targets else None
            if ratio and target and ratio.median < target:
                misses.append(f"FAIL  {point} against {name}: {ratio}, target at least {target:g}")
            asked = f">= {target:g}" if target else ""
            rows.append((str(point), name, str(speeds_of(point, taken)), str(ratio or ""), asked))
    print()
    print_table(("point", "side", "tokens/s", f"{OURS} is so many times as fast", "target"), rows)
    for miss in misses:
        print(miss)
    return not misses


def config_of(args: argparse.Namespace) -> Config:
    """Of our side, which computes in bfloat16 as the others do unless another dtype is asked for."""
    config = bench_config(args)
    if config.model.dtype != "auto":
        return config
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, dtype="bfloat16"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIR", help="folder that setup.sh filled")
    parser.add_argument("--sides", default=",".join(PEERS), help="others to run (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the seconds of every run as JSON at the end")
    add_bench_options(parser)
    parser.set_defaults(runs=5)
    args = parser.parse_args()
    if not RAW.is_file():
        sys.exit(f"there is no {RAW}, by whose definition the others are measured")
    # so that the other processes are ended with this one
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    points, config = points_from(args), config_of(args)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        link_model(config.model.name, folder)
        found = find_sides(args.directory, folder, args.sides.split(","), config)
        print(f"machine      {this_machine()}, load {os.getloadavg()[0]:.2f}", flush=True)
        with opened(found, folder) as sides:
            if OURS not in [side.name for side in sides]:
                return 1
            seconds = {point: measure(sides, point, args.runs) for point in points}
    is_met = report(seconds, has_targets=config.model.name == MODEL)
    if args.json:
        print(json.dumps({str(point): by_side for point, by_side in seconds.items()}))
    return 0 if is_met else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SideEnded, SwitchgearError) as error:
        sys.exit(f"error: {error}")
