"""All that needs a GPU, in one script of a few minutes: is every kernel right, and how near are they to the limits?

    python tests/gpu/run.py [--json FILE]

Needs nothing but this checkout, torch with CUDA, and Triton: weights are drawn on the device. Each section has its
time and its own failure; what was found so far is in FILE after each. Ends with 1 if a result is wrong, and with 2
where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.figures import Figure
    from tests.gpu.hardware import Hardware

ROOT = Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 345
SECONDS = {"correctness": 110, "ceilings": 20, "attention": 40, "paging": 25, "decode": 80, "engine": 40, "prefill": 30}
"""The most that each section may take, in this order; together no more than `TOTAL_SECONDS`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="FILE", help="(%(default)s)")
    parser.add_argument("--only", action="append", choices=SECONDS, help="run this section (repeatable)")
    parser.add_argument("--cpu-smoke", action="store_true", help="test the script itself on a CPU, on tiny shapes")
    arguments = parser.parse_args()
    if arguments.cpu_smoke:
        # settled when Triton is first imported
        os.environ["TRITON_INTERPRET"] = "1"
    problem = lack(arguments.cpu_smoke)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    sys.path.append(str(ROOT))
    from tests.gpu.figures import lines_of
    from tests.gpu.hardware import this_cpu, this_gpu

    report = Report(this_cpu() if arguments.cpu_smoke else this_gpu(), arguments.json)
    sections = Sections(report.hardware)
    for name in arguments.only or SECONDS:
        report.run(name, getattr(sections, name))
    print("\n".join(lines_of(report.figures)))
    for name, error in report.errors.items():
        print(f"{name} failed: {error}", file=sys.stderr)
    print(f"{report.hardware.name}, {report.seconds:.0f} s; figures in {arguments.json}")
    is_wrong = any(figure.is_wrong for figure in report.figures) or "correctness" in report.errors
    return 1 if is_wrong else 0


def lack(is_smoke: bool) -> str:
    """Why nothing can be run here, in a sentence; empty if it can."""
    from switchgear.core.engine.cuda import NoGPU, first_gpu

    if not is_smoke:
        try:
            first_gpu()
        except NoGPU as reason:
            return f"There is no GPU to measure: {reason}."
    if find_spec("triton") is None:
        return "Triton is not installed, so there is no kernel to run."
    return ""


class Sections:
    """Each section by its name; what they share is made by the first that needs it."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._ceilings: Any = None
        self._model: Any = None

    def correctness(self) -> Iterator[Figure]:
        from tests.gpu.correctness import correctness

        return correctness(self.hardware)

    def ceilings(self) -> Iterator[Figure]:
        from tests.gpu.speed import ceilings

        yield from ceilings(self._measured())

    def attention(self) -> Iterator[Figure]:
        from tests.gpu.attention import attention

        return attention(self.hardware)

    def paging(self) -> Iterator[Figure]:
        from tests.gpu.attention import paging

        yield from paging(self.hardware, self._measured())

    def decode(self) -> Iterator[Figure]:
        from tests.gpu.speed import decode

        yield from decode(self._started())

    def engine(self) -> Iterator[Figure]:
        from tests.gpu.speed import whole_engine

        yield from whole_engine(self._started())

    def prefill(self) -> Iterator[Figure]:
        from tests.gpu.speed import prefill

        yield from prefill(self._started())

    def _measured(self) -> Any:
        from tests.gpu.speed import measured_ceilings

        self._ceilings = self._ceilings or measured_ceilings(self.hardware)
        return self._ceilings

    def _started(self) -> Any:
        from tests.gpu.speed import start_model

        self._model = self._model or start_model(self.hardware, self._measured())
        return self._model


class Report:
    """What was found and what failed, kept after each section."""

    def __init__(self, hardware: Hardware, file: Path) -> None:
        self.hardware = hardware
        self.file = file
        self.figures: list[Figure] = []
        self.errors: dict[str, str] = {}
        self.section_seconds: dict[str, float] = {}
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def run(self, name: str, section: Callable[[], Iterator[Figure]]) -> None:
        """Keeps the figures of a section up to where it failed or had no more time."""
        start, limit = self.seconds, min(SECONDS[name], TOTAL_SECONDS - self.seconds)
        print(f"{name}, at most {max(limit, 0):.0f} s", file=sys.stderr, flush=True)
        try:
            with at_most(limit):
                for figure in section():
                    self.figures.append(figure)
        except OutOfTime:
            self.errors[name] = f"more than {limit:.0f} s"
        except Exception as error:
            traceback.print_exc()
            self.errors[name] = f"{type(error).__name__}: {error}"
        self.section_seconds[name] = self.seconds - start
        self.file.write_text(json.dumps(self.table(), indent=1) + "\n", encoding="utf-8")

    def table(self) -> dict[str, Any]:
        return {
            "device": self.hardware.name,
            "is_small": self.hardware.is_small,
            "torch": metadata.version("torch"),
            "triton": metadata.version("triton") if find_spec("triton") else "",
            "seconds": self.seconds,
            "section_seconds": self.section_seconds,
            "errors": self.errors,
            "figures": [figure.table() for figure in self.figures],
        }


class OutOfTime(BaseException):
    """A section ran longer than it may. No error that anything on the way may take for its own."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the block once the time is over; what the device is doing then is waited for."""

    def stop(*_: object) -> None:
        raise OutOfTime

    if seconds <= 0:
        raise OutOfTime
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main())
