"""Who is verified: a plugin by name with its options, what it requires, and whom it is tried together with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..config import unknown
from ..errors import ConfigError
from ..registry import PROJECT, available, check_class, distribution_of, import_plugin

Options = Mapping[str, Any]
Plugins = Mapping[str, Options]
"""Names and options of plugins that are on, in the order in which they apply."""

SMALL: Mapping[str, Options] = {
    "chunked_prefill": {"max_num_batched_tokens": 8, "max_partial_prefills": 2},
    "cpu_graphs": {"record_after": 0},
    "paged_kv": {"block_size": 4},
}
"""Options in which the kit's short prompts split, fill several blocks and run out of them."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin under verification."""

    name: str
    options: Options = field(default_factory=dict)
    """As in `[plugins.NAME]`; what is not set is the plugin's default, or small where the kit knows a small size."""
    classes: tuple[type, ...] = ()
    """Plugins that are not installed."""

    @property
    def cls(self) -> Any:
        """The plugin's class. Raises ConfigError if there is none of that name, PluginError if it cannot be imported"""
        return find_class(self.name, self.classes)

    @property
    def hooks(self) -> tuple[str, ...]:
        return check_class(self.name, self.cls)

    @property
    def claims(self) -> tuple[str, ...]:
        """Invariants of the kit that the plugin promises beyond what every plugin has to keep."""
        return tuple(getattr(self.cls, "claims", ()))

    @property
    def lack(self) -> str:
        """Why this machine cannot run it, as it says by `unavailable()`; empty where it can, or does not say."""
        lack: str = getattr(self.cls, "unavailable", str)()
        return lack

    @property
    def alone(self) -> dict[str, Options]:
        """The plugin with what it requires, and nothing else."""
        return with_requirements({self.name: {**SMALL.get(self.name, {}), **self.options}}, self.classes)

    def beside(self, others: Iterable[str]) -> dict[str, Options]:
        """Other plugins and this one, each behind what it requires; in one order, whichever of them is verified."""
        together = {**{name: SMALL.get(name, {}) for name in others}, **self.alone}
        return with_requirements(dict(sorted(together.items())), self.classes)


def find_class(name: str, classes: Iterable[type] = ()) -> Any:
    """The class of a plugin, installed or in `classes`."""
    for cls in classes:
        if getattr(cls, "name", None) == name:
            return cls
    return installed_class(name)


@cache
def installed_class(name: str) -> Any:
    """Looked up once: reading what is installed takes longer than building a virtual engine."""
    found = available()
    if name not in found:
        raise ConfigError(unknown("plugin", name, found))
    return import_plugin(found[name])


def classes_of(plugins: Plugins, classes: Iterable[type] = ()) -> tuple[type, ...]:
    """The class of each plugin."""
    return tuple(find_class(name, classes) for name in plugins)


def with_requirements(plugins: Plugins, classes: Iterable[type] = ()) -> dict[str, Options]:
    """The same plugins, each behind what it requires."""
    complete: dict[str, Options] = {}

    def enter(name: str, options: Options) -> None:
        for required in getattr(find_class(name, classes), "requires", ()):
            if required not in complete:
                enter(required, plugins.get(required, SMALL.get(required, {})))
        complete.setdefault(name, options)

    for name, options in plugins.items():
        enter(name, options)
    return complete


def first_party() -> tuple[str, ...]:
    """The plugins that come with the engine, by name."""
    return tuple(sorted(name for name, entry in available().items() if distribution_of(entry)[0] == PROJECT))
