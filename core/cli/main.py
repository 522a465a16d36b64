"""`switchgear`: the commands, and how they end."""

from __future__ import annotations

import io
import os
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence

from .. import VERSION
from . import (
    ablate,
    admin,
    bench,
    bisect,
    chat,
    demo,
    doctor,
    keys,
    models,
    plan,
    plugins,
    profile,
    pull,
    report,
    run,
    serve,
    simulate,
)
from .command import add_debug
from .exit_codes import FAILED, INTERRUPTED, PIPE_CLOSED
from .messages import Messages

COMMANDS = (
    run.COMMAND,
    chat.COMMAND,
    serve.COMMAND,
    keys.COMMAND,
    admin.COMMAND,
    demo.COMMAND,
    pull.COMMAND,
    models.COMMAND,
    plugins.COMMAND,
    plan.COMMAND,
    bench.COMMAND,
    profile.COMMAND,
    simulate.COMMAND,
    ablate.COMMAND,
    report.COMMAND,
    bisect.COMMAND,
    doctor.COMMAND,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Usage errors leave through SystemExit(2), as argparse has it."""
    show_any_text()
    arguments = make_parser().parse_args(argv)
    with Messages(arguments.debug) as messages:
        arguments.messages = messages
        try:
            code: int = arguments.run(arguments)
            print(end="", flush=True)
            return code
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            # the interpreter flushes once more at its end, and must find somebody who listens
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        except Exception as error:
            messages.tell_failure(error)
            return FAILED


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="switchgear",
        description="The LLM inference engine in which every optimization is a switch.",
        epilog="Exit codes: 0 done, 1 failed with one sentence that says why, 2 wrong usage, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"switchgear {VERSION}")
    add_debug(parser, default=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        description = f"{command.summary} {command.details}"
        subparser = commands.add_parser(command.name, help=command.summary, description=description, allow_abbrev=False)
        command.add_options(subparser)
        # without a default, so that what stands before the command is not undone
        add_debug(subparser, default=SUPPRESS)
        subparser.set_defaults(run=command.run)
    return parser


def show_any_text() -> None:
    """No character ends a command: what a terminal cannot show becomes `?`, broken input is refused by its reader."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
