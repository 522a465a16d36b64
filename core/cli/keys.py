"""`switchgear keys`: API keys for a server's file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .command import Command


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=["new"], help="make a key and print it, which is the only time it is seen")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="whose requests come with this key")
    parser.add_argument("--admin", action="store_true", help="let it run plugins' commands as well")


def run(arguments: Namespace) -> int:
    from ..gateway.keys import line_of, new_key

    key = new_key()
    line = line_of(key, arguments.tenant, arguments.admin)
    print(f"key, for the client:         {key}")
    print(f"line, for the server's file: {line}")
    return 0


COMMAND = Command(
    "keys",
    "Make API keys for a server.",
    add_options,
    run,
    "The file has a line for each key, which holds a hash of it: `switchgear serve --api-keys FILE`.",
)
