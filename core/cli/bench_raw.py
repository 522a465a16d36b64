"""`switchgear bench raw`: tokens a second at fixed points, by the definition that other engines are measured by."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from typing import TYPE_CHECKING

from .bench_options import add_bench_options, bench_config, points_from, print_heading, stamp
from .command import Command
from .output import print_json_line, print_table

if TYPE_CHECKING:
    from ..lab.raw import RawSpeed

HEADER = ("point", "output tokens/s", "all tokens/s", "best s", "median s")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON lines: one for the start, one for each point")
    add_bench_options(parser)


def run(arguments: Namespace) -> int:
    points, config = points_from(arguments), bench_config(arguments)
    from ..lab.machine import this_machine, versions
    from ..lab.raw import PEER, RawEngine

    with closing(RawEngine(config)) as engine:
        engine.check(points)
        about = engine.plan, this_machine(), versions()
        if arguments.json:
            print_json_line({"peer": PEER, "startup_s": round(engine.startup_seconds, 1), **stamp(*about)})
            for point in points:
                print_json_line({**engine.measure(point, arguments.runs).line(), **stamp(*about)})
        else:
            print_heading(*about, notes=[f"start    {engine.startup_seconds:.1f} s"])
            print_table(HEADER, [row_of(engine.measure(point, arguments.runs)) for point in points])
    return 0


def row_of(speed: RawSpeed) -> tuple[str, ...]:
    rates = f"{speed.output_tokens_per_s:.1f}", f"{speed.total_tokens_per_s:.1f}"
    return str(speed.point), *rates, f"{speed.best:.4f}", f"{speed.median:.4f}"


COMMAND = Command(
    "raw",
    "Measure tokens a second at fixed points.",
    add_options,
    run,
    "All requests of a point come at once: random prompts, greedy, as many output tokens as the point says, and the "
    "best run counts. Without --config and --recipe the recommended recipe has its prefix cache off.",
)
