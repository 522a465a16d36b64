"""`switchgear models`: what is on this machine, and what could be."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from .command import Command
from .output import megabytes, print_json, print_table

HEADER = ("name", "kind", "size", "here", "converted", "path")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")


def run(arguments: Namespace) -> int:
    from ..model.store import installed

    models = installed()
    if arguments.json:
        print_json([{**asdict(model), "path": str(model.path)} for model in models])
        return 0
    rows = [
        (
            model.name,
            model.kind,
            megabytes(model.num_bytes),
            "yes" if model.is_fetched else "no",
            ", ".join(model.converted_dtypes) or "-",
            str(model.path),
        )
        for model in models
    ]
    print_table(HEADER, rows)
    return 0


COMMAND = Command(
    "models",
    "List the models of the catalogue and those on this machine.",
    add_options,
    run,
    "`here` says whether a model was fetched, `converted` for which dtypes a GGUF is ready to load.",
)
