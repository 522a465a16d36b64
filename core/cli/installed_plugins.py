"""What is installed under the plugins' entry point, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

from ..errors import PluginError
from ..registry import available, check_class, distribution_of, import_plugin, summary_of


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """One line of `switchgear plugins`."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    summary: str = ""
    problem: str = ""
    """Why it cannot be switched on; empty where it can."""


def installed_plugins() -> list[InstalledPlugin]:
    """Every one, by name. Imports each, since only its class says which hooks it implements; builds none."""
    return [inspected(entry) for _, entry in sorted(available().items())]


def inspected(entry: EntryPoint) -> InstalledPlugin:
    distribution, version = distribution_of(entry)
    try:
        cls = import_plugin(entry)
        hooks = check_class(entry.name, cls)
    except PluginError as error:
        return InstalledPlugin(entry.name, distribution, version, problem=str(error))
    return InstalledPlugin(entry.name, distribution, version, hooks, summary_of(cls))
