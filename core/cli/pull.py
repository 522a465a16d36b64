"""`switchgear pull`: get a model onto this machine."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from .command import Command


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a catalogue name, a Hugging Face id, a model directory or a .gguf file")


def run(arguments: Namespace) -> int:
    from ..model.store import pull

    print(pull(arguments.name, progress=sys.stderr.isatty()))
    return 0


COMMAND = Command("pull", "Fetch a model, check it and print where it is.", add_options, run)
