"""The jinja environment that chat templates are written for, in a sandbox with a bound on time and size.

A template comes with a model, so it is run as somebody else's code: no attribute that starts with an underscore, no
change to the values it is given, and an end to every loop that reads or calls anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

MAX_SECONDS = 5.0
MAX_CHARACTERS = 32 << 20
"""Of one rendered chat; about 8 million tokens."""

_deadline: ContextVar[float] = ContextVar("_deadline")


def render_template(template: str, variables: Mapping[str, object]) -> str:
    """Render a chat template; raises whatever jinja or the template's own expressions raise."""
    token = _deadline.set(time.monotonic() + MAX_SECONDS)
    try:
        pieces, num_characters = [], 0
        for piece in _compile(template).generate(variables):
            _check_deadline()
            pieces.append(piece)
            num_characters += len(piece)
            if num_characters > MAX_CHARACTERS:
                raise SecurityError(f"it writes more than {MAX_CHARACTERS} characters")
        return "".join(pieces)
    finally:
        _deadline.reset(token)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """Looks at the clock in every lookup, call and multiplication of a template."""

    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_deadline()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_deadline()
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"it reads the forbidden attribute {attribute!r}")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_deadline()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse products that would fill the memory in one step, such as "x" * 10 ** 12."""
        _check_deadline()
        size = max((len(side) for side in (left, right) if isinstance(side, str | list | tuple)), default=1)
        factor = max((abs(side) for side in (left, right) if isinstance(side, int)), default=1)
        if size * factor > MAX_CHARACTERS:
            raise SecurityError(f"it multiplies to more than {MAX_CHARACTERS}")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only lets its body through."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=32)
def _compile(template: str) -> Template:
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(range=_WatchedRange, raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment.from_string(template)


class _WatchedRange(Sequence[int]):
    """The sandbox bounds one range, but not ranges inside ranges whose bodies do nothing."""

    def __init__(self, *args: int) -> None:
        self._numbers = safe_range(*args)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return self._numbers[index]

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            _check_deadline()
            yield number


def _check_deadline() -> None:
    if time.monotonic() > _deadline.get():
        raise SecurityError(f"it runs longer than {MAX_SECONDS:g} seconds")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, where jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
