"""Importing this makes Triton's interpreter several times faster, and changes nothing of what it computes.

It patches its language anew at each call of a device function, `tl.max` and `tl.cdiv` among them, which takes longer
than to run one. A launch has patched `triton.language` already, and what is patched beside it is never restored.
"""

from __future__ import annotations

from typing import Any

from triton import language
from triton.runtime import interpreter

is_patched: set[str] = set()
"""Modules whose language was patched for good."""


def call(function: Any, *arguments: Any, **named: Any) -> Any:
    module = function.fn.__module__
    if module not in is_patched and language not in vars_of(function):
        interpreter._patch_lang(function.fn)
        is_patched.add(module)
    return function.rewrite()(*arguments, **named)


def vars_of(function: Any) -> list[Any]:
    return [value for name, value in function.fn.__globals__.items() if name in ("tl", "language")]


interpreter.InterpretedFunction.__call__ = call
