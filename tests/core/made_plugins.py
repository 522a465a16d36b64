"""Plugin classes made by a test, and registries of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchgear.core.config import PluginConfig, PluginEntry
from switchgear.core.defaults import StaticBatching
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Limits
from switchgear.core.registry import Registry

LIMITS = Limits(max_num_seqs=1, max_step_tokens=1, max_model_len=1)


class Base:
    """What every plugin needs."""

    name = "plugin"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: PluginConfig) -> None:
        pass


def plugin(its_name: str, **members: Any) -> type:
    """A plugin class with these members, in a module of its own."""
    about = {"name": its_name, "__doc__": f"The {its_name} plugin.", "__module__": "plugins_of_this_test"}
    return type("Made", (Base,), {**about, **members})


def registry_of(*classes: type) -> Registry:
    """All of them on, in this order, before the defaults."""
    entries = [PluginEntry(str(cls.name), {}) for cls in classes]  # type: ignore[attr-defined]
    return Registry(entries, [StaticBatching()], classes)


def answers(value: object) -> Callable[..., object]:
    return lambda self: value


@hookimpl
def observe(self: object) -> None: ...
