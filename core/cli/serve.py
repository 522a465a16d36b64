"""`switchgear serve`: a model behind OpenAI's API."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from ..config import Config, ServerConfig, build_struct
from ..errors import ConfigError
from .command import Command
from .field_docs import field_docs
from .options import add_config_options, config_from

NEEDED = ("starlette", "uvicorn", "prometheus_client", "zmq")
OPTIONS = (
    ("host", str, "ADDRESS"),
    ("port", int, "N"),
    ("api_keys", str, "FILE"),
    ("max_body_bytes", int, "N"),
    ("max_prompt_characters", int, "N"),
    ("max_open_requests", int, "N"),
    ("drain_seconds", float, "S"),
    ("keepalive_seconds", float, "S"),
)
"""Fields of `[server]` that have an option of their own."""


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("how it is reached, and what it lets in ([server] in the config)")
    documents, defaults = field_docs(ServerConfig), ServerConfig()
    for name, kind, metavar in OPTIONS:
        default = getattr(defaults, name)
        text = documents[name].replace("%", "%%") + (f" (default {default})" if default != "" else "")
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        dest="served_model_names",
        help=f"{documents['served_model_names']} (repeatable)",
    )
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    config = with_server_options(config_from(arguments), arguments)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"the server needs what is not installed here ({', '.join(missing)}): pip install 'switchgear[server]'"
        )
    arguments.messages.tell_at_once()
    return serve(config)


def with_server_options(config: Config, arguments: Namespace) -> Config:
    """What the command line says of `[server]` counts more than the file."""
    names = [name for name, _, _ in OPTIONS] + ["served_model_names"]
    given: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    server = build_struct(ServerConfig, {**msgspec.to_builtins(config.server), **given}, "[server]")
    return msgspec.structs.replace(config, server=server)


def serve(config: Config) -> int:
    """Serve until the end. The engine's process starts before whatever it does not need is imported."""
    begin = time.perf_counter()
    import asyncio

    from ..gateway.keys import Keys
    from ..gateway.listening import listen

    server = config.server
    keys = Keys.load(Path(server.api_keys)) if server.api_keys else Keys({})
    with listen(server.host, server.port) as listener:
        from ..gateway.service import Service

        service = Service(config, max_restarts=server.max_restarts)
        service.launch()
        try:
            from ..gateway.server import Server

            return asyncio.run(Server(server, service, listener, keys, begin).run())
        finally:
            # what came in between may have kept the server from doing so
            asyncio.run(service.close())


COMMAND = Command(
    "serve",
    "Serve a model over HTTP with OpenAI's API.",
    add_options,
    run,
    "SIGTERM or Ctrl-C lets running requests finish, a second one does not. Exit code 0: ended as asked; 1: no engine "
    "could be had any more, with the cause.",
)
