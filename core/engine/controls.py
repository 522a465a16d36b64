"""The named commands and counters of plugins, asked outside of any step. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ..config import listed, unknown
from ..errors import ConfigError, PluginFault, RequestError, SwitchgearError
from ..interfaces import Control
from ..registry import Bound


def run_control(controls: Iterable[Bound[Control]], plugin: str, command: str, arguments: Mapping[str, Any]) -> Any:
    """Run a plugin's named command.

    Raises ConfigError for an unknown one, RequestError for arguments that it does not take, PluginFault for one that
    failed.
    """
    by_plugin = {bound.plugin: bound.value for bound in controls}
    if plugin not in by_plugin:
        raise ConfigError(unknown("plugin with commands", plugin, by_plugin))
    commands = told(plugin, "commands", by_plugin[plugin].commands)
    if command not in commands:
        raise ConfigError(unknown(f"command of plugin {plugin!r}", command, commands))
    check_arguments(command, commands[command], arguments)
    return told(plugin, command, partial(commands[command], **arguments))


def check_arguments(name: str, command: Callable[..., object], arguments: Mapping[str, Any]) -> None:
    """Raise RequestError where a command does not take these arguments, with those that it does."""
    signature = inspect.signature(command)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = listed("it takes", signature.parameters)
        raise RequestError(f"command {name!r} cannot be run like this ({error}): {takes}") from None


def read_stats(controls: Iterable[Bound[Control]]) -> dict[str, dict[str, float]]:
    """Every plugin's counters, by plugin. Raises PluginFault."""
    return {bound.plugin: told(bound.plugin, "stats", partial(numbers, bound.value)) for bound in controls}


def numbers(control: Control) -> dict[str, float]:
    return {name: float(value) for name, value in control.stats().items()}


def told(plugin: str, method: str, ask: Callable[[], Any]) -> Any:
    """What a plugin answers outside of any step; what it raises is a PluginFault in its name."""
    try:
        return ask()
    except SwitchgearError:
        raise
    except Exception as error:
        raise PluginFault(plugin, method, error) from error
