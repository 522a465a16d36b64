"""Commands and counters of every plugin, whichever process its instance lives in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import unknown
from ..engine.client import EngineClient
from ..engine.controls import read_stats, run_control
from ..errors import ConfigError, RequestError
from ..registry import CORE, Registry

GATEWAY_HOOKS = ("on_ingress", "route")


class Controls:
    """A plugin that answers a hook of the gateway is asked here, every other one in the engine's process."""

    def __init__(self, registry: Registry, client: EngineClient) -> None:
        here = {plugin for (hook, plugin), count in registry.bindings.items() if hook in GATEWAY_HOOKS and count}
        bound = registry.every("control", engine=NoEngine()) if here else []
        self._here = [control for control in bound if control.plugin in here]
        self._client = client

    async def run(self, plugin: str, command: str, arguments: Mapping[str, Any]) -> Any:
        """What `command` of `plugin` returns. Raises ConfigError for an unknown one, with the list.

        The core has a command of its own, `audit`: what is wrong with the engine's books, empty when all is well.
        """
        if plugin == CORE:
            if command != "audit":
                raise ConfigError(unknown("command of the core", command, ["audit"]))
            return await self._client.audit()
        if any(control.plugin == plugin for control in self._here):
            return run_control(self._here, plugin, command, arguments)
        return await self._client.control(plugin, command, arguments)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Every plugin's counters, by plugin."""
        return {**await self._client.stats(), **read_stats(self._here)}


class NoEngine:
    """Stands for the engine where a plugin's commands run in another process."""

    def preempt_all(self) -> int:
        raise RequestError("this command runs in the gateway, which has no rows to preempt")
