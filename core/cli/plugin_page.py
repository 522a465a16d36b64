"""Everything there is to know of one plugin before it is switched on, read from its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from ..config import PluginConfig
from ..registry import check_class, distribution_of, import_plugin, summary_of
from .field_docs import field_docs

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "min_length": "length >=", "max_length": "length <="}


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a plugin's `Config`."""

    name: str
    type: str
    default: Any
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class PluginPage:
    """What `switchgear plugins NAME` shows."""

    name: str
    distribution: str
    version: str
    summary: str
    hooks: tuple[str, ...]
    equivalence: str
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    options: tuple[Option, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.name} ({self.distribution} {self.version}): {self.summary}",
            "",
            f"hooks        {', '.join(self.hooks)}",
            f"equivalence  {self.equivalence}",
            f"requires     {', '.join(self.requires) or 'nothing'}",
            f"conflicts    {', '.join(self.conflicts) or 'with nothing'}",
            "",
            f"[plugins.{self.name}]" if self.options else "no options",
        ]
        for option in self.options:
            default = "required" if option.is_required else f"default {option.default!r}"
            lines.append(f"{option.name}: {option.type}, {default}")
            lines += [f"    {option.description}"] if option.description else []
        return "\n".join(lines)


def plugin_page(entry: EntryPoint) -> PluginPage:
    """Imports the plugin and builds nothing. Raises PluginError if it cannot be switched on at all."""
    cls = import_plugin(entry)
    hooks = check_class(entry.name, cls)
    distribution, version = distribution_of(entry)
    return PluginPage(
        name=entry.name,
        distribution=distribution,
        version=version,
        summary=summary_of(cls),
        hooks=hooks,
        equivalence=str(cls.equivalence),
        requires=tuple(getattr(cls, "requires", ())),
        conflicts=tuple(getattr(cls, "conflicts", ())),
        options=tuple(options_of(cls.Config)),
    )


def options_of(config: type[PluginConfig]) -> Iterator[Option]:
    documents = field_docs(config)
    for field in fields(config):
        yield Option(
            name=field.name,
            type=type_text(field.type),
            default=msgspec.to_builtins(default_of(field)),
            is_required=field.required,
            description=documents.get(field.name, ""),
        )


def default_of(field: FieldInfo) -> Any:
    if field.required:
        return None
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def type_text(annotation: Any) -> str:
    """A type as a person would say it: `int >= 1 | None`, `'fp8' | 'int8'`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        base, *constraints = arguments
        bounds = " and ".join(bound for constraint in constraints for bound in bounds_of(constraint))
        return f"{type_text(base)} {bounds}".strip()
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if annotation is type(None):
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not arguments else str(annotation)


def bounds_of(constraint: Any) -> list[str]:
    """What a `msgspec.Meta` asks of a value."""
    bounds = {sign: getattr(constraint, name, None) for name, sign in SIGNS.items()}
    return [f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None]
