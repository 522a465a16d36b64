"""Errors meant for the person at the keyboard: one sentence that says what is wrong and what to do."""

from __future__ import annotations


class SwitchgearError(Exception):
    """Base of everything the engine refuses on purpose. The text is shown as it is, without a traceback."""

    def __init__(self, text: str) -> None:
        # a cause that is quoted may have several lines
        super().__init__(" ".join(line.strip() for line in text.splitlines()))


class ConfigError(SwitchgearError, ValueError):
    """The config asks for something that does not exist or does not fit."""


class PluginError(SwitchgearError):
    """A plugin cannot be loaded, bound or combined."""


class PluginFault(PluginError):
    """A plugin's hot method raised or returned nonsense; fails the rows of that step."""

    def __init__(self, plugin: str, method: str, cause: BaseException | str) -> None:
        text = cause if isinstance(cause, str) else f"raised {type(cause).__name__}: {cause}"
        super().__init__(f"plugin {plugin!r} failed in {method}: {text}")
        self.plugin = plugin
        self.method = method
        self.problem = text


class ModelError(SwitchgearError):
    """A model cannot be found, fetched, verified or read."""


class RequestError(SwitchgearError, ValueError):
    """A request that the engine cannot serve; the engine itself goes on."""
