"""`switchgear plugins`: what is installed and what is on; with a name, everything there is to set."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..config import unknown
from ..errors import ConfigError
from .command import Command
from .messages import one_line
from .options import add_config_options, config_from
from .output import print_json, print_table

if TYPE_CHECKING:
    from .installed_plugins import InstalledPlugin

HEADER = ("name", "distribution", "version", "state", "hooks", "summary")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show this plugin and its options instead of the list")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    from ..registry import available
    from .installed_plugins import installed_plugins
    from .plugin_page import plugin_page

    on = [entry.name for entry in config_from(arguments).plugins]
    entries = available()
    for name in [*on, arguments.name] if arguments.name else on:
        if name not in entries:
            raise ConfigError(unknown("plugin", name, entries))
    if arguments.name:
        page = plugin_page(entries[arguments.name])
        if arguments.json:
            print_json(page.to_json())
        else:
            print(page)
        return 0
    plugins = installed_plugins()
    if arguments.json:
        print_json([{**asdict(plugin), "is_on": plugin.name in on} for plugin in plugins])
    else:
        print_table(HEADER, [row(plugin, plugin.name in on) for plugin in plugins])
    return 0


def row(plugin: InstalledPlugin, is_on: bool) -> tuple[str, ...]:
    state = "broken" if plugin.problem else "on" if is_on else "off"
    hooks = ", ".join(plugin.hooks) or "-"
    text = one_line(plugin.problem) or plugin.summary
    return plugin.name, plugin.distribution, plugin.version, state, hooks, text


COMMAND = Command(
    "plugins",
    "List the installed plugins, or show one with its options.",
    add_options,
    run,
    "`state` is what the given config or recipe makes of them; a broken one is listed with its cause.",
)
