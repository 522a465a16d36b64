"""`switchgear report`: the results of an ablation as a page, pictures and tables."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError
from .command import Command


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="what `switchgear ablate --out FILE` wrote")
    outputs = parser.add_argument_group("what to make, one or more")
    outputs.add_argument("--html", type=Path, metavar="OUT", help="one page that needs no network")
    outputs.add_argument("--svg", type=Path, metavar="DIR", help="every picture as SVG, with its text as text")
    outputs.add_argument("--png", type=Path, metavar="DIR", help="every picture as PNG")
    outputs.add_argument("--csv", type=Path, metavar="DIR", help="every table, unrounded; needs no matplotlib")
    parser.add_argument(
        "--interval",
        choices=["t", "bca", "percentile"],
        default="t",
        help="how the 95 %% intervals are made: Student's t, or the bootstrap, bca of 6 blocks or percentile of 20 "
        "at least (default: %(default)s)",
    )


def run(arguments: Namespace) -> int:
    if not (arguments.html or arguments.svg or arguments.png or arguments.csv):
        raise ConfigError("nothing to make: say where with --html OUT, --svg DIR, --png DIR or --csv DIR")
    for path in written(arguments):
        print(path)
    return 0


def written(arguments: Namespace) -> Iterator[Path]:
    """Make everything that was asked for, and name each file when it is there."""
    from ..lab.analysis import analyse
    from ..lab.report.page import page
    from ..lab.report.pictures import write_pictures
    from ..lab.report.spreadsheets import write_spreadsheets

    analysis = analyse(arguments.file, arguments.interval)
    try:
        if arguments.csv:
            yield from write_spreadsheets(analysis, arguments.csv)
        if arguments.html:
            arguments.html.write_text(page(analysis), encoding="utf-8")
            yield arguments.html
        if arguments.svg:
            yield from write_pictures(analysis, arguments.svg, "svg")
        if arguments.png:
            yield from write_pictures(analysis, arguments.png, "png")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from error


COMMAND = Command(
    "report",
    "Show what an ablation found: a page, pictures for papers, tables.",
    add_options,
    run,
    "The page has every effect with its interval, the interactions, the latency of single requests, the check of the "
    "outputs, what was left out, and how to reproduce it. Pictures need matplotlib: pip install 'switchgear[lab]'.",
)
