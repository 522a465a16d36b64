"""One option for each field of SamplingParams, made from the fields themselves so that none is forgotten."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import RequestError
from ..sampling_params import SamplingParams, Structure
from .field_docs import field_docs


def add_sampling_options(parser: ArgumentParser, leave_out: Collection[str] = ()) -> None:
    group = parser.add_argument_group("sampling")
    documents, types = field_docs(SamplingParams), get_type_hints(SamplingParams)
    for field in fields(SamplingParams):
        if field.name not in leave_out:
            how, note = how_to_read(types[field.name])
            flag = f"--{field.name.replace('_', '-')}"
            text = f"{documents[field.name]}{note}{default_note(field)}".replace("%", "%%")
            group.add_argument(flag, default=SUPPRESS, help=text, **how)


def sampling_params(arguments: Namespace, **defaults: Any) -> SamplingParams:
    """What was given, over `defaults`, over the defaults of SamplingParams. Raises RequestError."""
    given = {field.name: getattr(arguments, field.name) for field in fields(SamplingParams) if field.name in arguments}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return SamplingParams(**{**defaults, **given})


def how_to_read(annotation: Any) -> tuple[dict[str, Any], str]:
    """What argparse needs to know for a field of this type, and what the help adds about it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return {"action": "store_true"}, ""
    if origin is Mapping:
        return {"action": "append", "type": bias, "metavar": "ID=BIAS"}, " Repeatable."
    if origin is Collection:
        element = arguments[0]
        return {"action": "append", "type": element, "metavar": "TEXT" if element is str else "ID"}, " Repeatable."
    if Structure in arguments:
        return {
            "type": structure,
            "metavar": "KIND=TEXT",
        }, " Kinds are json_object, json_schema, regex, choice, grammar."
    number = next(kind for kind in (annotation, *arguments) if kind in (int, float))
    return {"type": number, "metavar": "N" if number is int else "X"}, ""


def default_note(field: Field[Any]) -> str:
    has_default = isinstance(field.default, int | float) and not isinstance(field.default, bool)
    return f" Default {field.default}." if has_default else ""


def structure(text: str) -> Structure:
    """`regex=[0-9]+` and the like, `json_object` alone."""
    kind, _, rest = text.partition("=")
    try:
        return Structure(kind, rest)  # type: ignore[arg-type]  # checked there
    except RequestError as error:
        raise ArgumentTypeError(str(error)) from None


def bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no token id and bias, such as 42=-100") from None
