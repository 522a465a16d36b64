"""Looks over a plugin's shoulder: a subclass of its class whose hooks return the same objects, with every call seen.

The core, pluggy and the other plugins cannot tell the difference, so whatever runs a plugin by name can be watched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ..registry import HOOKS


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a hot method, and what came of it."""

    hook: str
    method: str
    """`call` where the answer to the hook is itself a function."""
    owner: Any
    """The answer to the hook, as the plugin made it."""
    arguments: tuple[Any, ...]
    result: Any
    changed: tuple[str, ...]
    """Arguments in which the plugin changed something, by position and field."""

    @property
    def place(self) -> tuple[str, str]:
        return self.hook, self.method


OnEnter = Callable[[str, str], None]
"""Called with hook and method before the plugin's own code runs; what it raises, the plugin seems to raise."""
OnCall = Callable[[Call], None]


def watch(cls: Any, on_call: OnCall, on_enter: OnEnter = lambda hook, method: None) -> type:
    """A plugin class that does what `cls` does, and tells of each call to what its hooks returned."""

    def hooked(hook: str) -> Callable[..., Any]:
        original = getattr(cls, hook)

        @functools.wraps(original)
        def answer(self: Any, *arguments: Any, **named: Any) -> Any:
            return watched(original(self, *arguments, **named), hook, self, on_call, on_enter)

        return answer

    implemented = [name for name in HOOKS if hasattr(inspect.getattr_static(cls, name, None), "switchgear_impl")]
    body = {name: hooked(name) for name in implemented}
    return type(cls.__name__, (cls,), {**body, "__module__": cls.__module__, "__doc__": cls.__doc__})


def watched(answer: Any, hook: str, plugin: object, on_call: OnCall, on_enter: OnEnter) -> Any:
    """A stand-in for what a hook returned."""
    if answer is None or is_refusal(answer):
        return answer
    if inspect.isroutine(answer):
        return seen(answer, hook, "call", answer, plugin, on_call, on_enter)
    body: dict[str, Any] = {}
    if callable(answer):
        # a function that says something of itself, such as the layouts that it writes
        body["__call__"] = staticmethod(seen(answer, hook, "call", answer, plugin, on_call, on_enter))
    for name in dir(answer):
        if name.startswith("_"):
            continue
        if callable(getattr(answer, name)):
            body[name] = staticmethod(seen(getattr(answer, name), hook, name, answer, plugin, on_call, on_enter))
        else:
            body[name] = property(functools.partial(lambda _, name: getattr(answer, name), name=name))
    # what an object only gets later is found too
    body["__getattr__"] = lambda _, name: getattr(answer, name)
    return type(f"Watched{type(answer).__name__}", (), body)()


def is_refusal(answer: Any) -> bool:
    from ..records import Refusal

    return isinstance(answer, Refusal)


def seen(
    function: Callable[..., Any], hook: str, method: str, owner: Any, self: object, on_call: OnCall, on_enter: OnEnter
) -> Callable[..., Any]:
    """self: the plugin, by the name under which the registry looks in a traceback for whose fault it was."""

    @functools.wraps(function)
    def forward(*arguments: Any, **named: Any) -> Any:
        enter(self)
        given = (*arguments, *named.values())
        before = snapshots(given)
        result = function(*arguments, **named)
        if inspect.isawaitable(result):
            return awaited(result, given, before)
        on_call(Call(hook, method, owner, given, result, changes(before, given)))
        return result

    def enter(self: object) -> None:
        on_enter(hook, method)

    async def awaited(result: Any, given: tuple[Any, ...], before: dict[str, Any]) -> Any:
        value = await result
        on_call(Call(hook, method, owner, given, value, changes(before, given)))
        return value

    return forward


# -- what was changed -----------------------------------------------------------------------------------------------


def arrays_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array and tensor in records and tuples, with the path to it."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        yield name, value
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from arrays_in(item, f"{name}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from arrays_in(getattr(value, entry.name), f"{name}.{entry.name}")


def is_tensor(value: Any) -> bool:
    """Without loading torch for who has no tensors."""
    return type(value).__module__ == "torch" and hasattr(value, "data_ptr")


def snapshots(arguments: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, argument in enumerate(arguments):
        for name, array in arrays_in(argument, argument_name(index, argument)):
            found[name] = array.clone() if is_tensor(array) else array.copy()
    return found


def changes(before: dict[str, Any], arguments: tuple[Any, ...]) -> tuple[str, ...]:
    after = {
        name: array
        for index, argument in enumerate(arguments)
        for name, array in arrays_in(argument, argument_name(index, argument))
    }
    return tuple(name for name, array in before.items() if name not in after or not same(array, after[name]))


def argument_name(index: int, argument: Any) -> str:
    return f"argument {index + 1} ({type(argument).__name__})"


def same(before: Any, after: Any) -> bool:
    if is_tensor(before):
        import torch

        return before.shape == after.shape and bool(torch.equal(before.nan_to_num(), after.nan_to_num()))
    return before.shape == after.shape and bool(np.array_equal(before, after, equal_nan=before.dtype.kind == "f"))
