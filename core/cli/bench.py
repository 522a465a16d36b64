"""`switchgear bench`: how fast the engine is here, one kind of measurement a subcommand."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace

from . import bench_load, bench_max_rate, bench_raw, bench_roofline
from .command import Command, add_debug

KINDS = (bench_raw.COMMAND, bench_roofline.COMMAND, bench_load.COMMAND, bench_max_rate.COMMAND)


def add_options(parser: ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    for kind in KINDS:
        description = f"{kind.summary} {kind.details}"
        subparser = kinds.add_parser(kind.name, help=kind.summary, description=description, allow_abbrev=False)
        kind.add_options(subparser)
        add_debug(subparser, default=SUPPRESS)
        subparser.set_defaults(kind=kind)


def run(arguments: Namespace) -> int:
    kind: Command = arguments.kind
    return kind.run(arguments)


COMMAND = Command(
    "bench",
    "Measure how fast the engine is on this machine.",
    add_options,
    run,
    "Figures move when anything else runs, and from hour to hour: compare those of one sitting.",
)
