"""`switchgear bench roofline`: what this machine allows, and how much of it the engine reaches."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from .bench_options import add_bench_options, bench_config, points_from, print_heading, stamp
from .command import Command
from .output import print_json, print_table

if TYPE_CHECKING:
    from ..lab.roofline import Measured, Share

HEADER = ("point", "stage", "limited by", "limit s", "took s", "share")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_bench_options(parser)


def run(arguments: Namespace) -> int:
    points, config = points_from(arguments), bench_config(arguments)
    from ..lab.machine import this_machine, versions
    from ..lab.raw import RawEngine
    from ..lab.roofline import measure_shares

    with closing(RawEngine(config)) as engine:
        engine.check(points)
        about = engine.plan, this_machine(), versions()
        measured, shares = measure_shares(engine, about[1], points, arguments.runs)
    if arguments.json:
        print_json({**stamp(*about), **asdict(measured), "shares": [share.table() for share in shares]})
    else:
        print_heading(*about, notes=lines_of(measured))
        print_table(HEADER, [row_of(share) for share in shares])
    return 0


def lines_of(measured: Measured) -> list[str]:
    far, weights = measured.far_bytes_per_s / 1e9, measured.weights_bytes_per_s / 1e9
    rates = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {dtype}" for dtype, rate in measured.flops_per_s.items())
    return [
        f"reads    {far:.1f} GB/s far beyond the caches, {weights:.1f} GB/s over as much as the weights",
        f"products {rates}",
    ]


def row_of(share: Share) -> tuple[str, ...]:
    seconds = f"{share.limit_seconds:.4f}", f"{share.seconds:.4f}"
    return str(share.point), share.stage, share.bound, *seconds, f"{share.share:.0%}"


COMMAND = Command(
    "roofline",
    "Measure what this machine allows, and how much of it each point reaches.",
    add_options,
    run,
    "The limit of a step is the time to read the weights and the KV once, or that of its products, whichever is "
    "longer. Decode is what a point takes longer than the same prompts with one token of output.",
)
