"""`switchgear admin`: run a plugin's command in a server that runs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ..config import read_value
from ..errors import RequestError
from .command import Command
from .output import print_json

TIMEOUT = 60.0
"""Seconds."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("plugin", help="the plugin, as `switchgear plugins` lists it")
    parser.add_argument("command", help="the command's name")
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="what the command takes")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server is (default %(default)s)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="a file that holds nothing but an admin's key"
    )


def run(arguments: Namespace) -> int:
    key = read_key(arguments.api_key_file) if arguments.api_key_file else ""
    given = dict(map(read_argument, arguments.arguments))
    print_json(post(f"{arguments.url.rstrip('/')}/admin/{arguments.plugin}/{arguments.command}", given, key))
    return 0


def read_argument(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise RequestError(f"cannot read argument {text!r}: write key=value")
    return name, read_value(value)


def read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the API key in {path}: {error}") from error


def post(url: str, arguments: dict[str, Any], key: str) -> Any:
    """What the server answers. Raises RequestError with what it says instead, or why it cannot be reached."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        request = Request(url, json.dumps(arguments, default=str).encode(), headers)
        with urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise RequestError(message_of(error.read(), error.code)) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RequestError(f"no server answers at {url} ({reason}): start one, or name another with --url") from error


def message_of(body: bytes, status: int) -> str:
    """The sentence of an error object; of anything else, that it is none of ours."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status} and no reason: is it a switchgear server?"


COMMAND = Command("admin", "Run a plugin's command in a running server.", add_options, run)
