"""What a command is to the parser: a name, a sentence, options and a function."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Its module imports nothing heavy before `run` is called."""

    name: str
    summary: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """Returns the exit code; a SwitchgearError becomes one sentence and exit code 1."""
    details: str = ""
    """What else its help says."""


def add_debug(parser: ArgumentParser, default: bool | str) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
