"""JSON bodies to typed records; whatever is wrong with one is a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from .errors import ApiError, bad_request, model_not_found
from .wire import Wire

T = TypeVar("T")

SHOWN_REASON = 200
"""Characters of what is wrong with a value, which the parser repeats however long it is."""

WHERE = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*?)(?:\[\.\.\.\])*`$")
"""How msgspec ends a sentence with the place it is about; `[...]` is a key that it does not tell."""

LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The record that `decoder` makes of `body`. Where a key is given twice the last one counts, as in most parsers."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        # the parser speaks of truncated data there
        malformed = str(error).removeprefix("JSON is malformed: ")
        reason = "a string has a lone surrogate" if LONE_SURROGATE.search(body) else malformed
        raise bad_request(f"The body is not valid JSON: {reason}.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply; send a flatter one.") from None


def convert(value: Any, kind: Any, field: str) -> Any:
    """`value`, the content of `field`, checked against a type that only another part of the body could tell."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), field) from None


def invalid_field(sentence: str, field: str = "") -> ApiError:
    """field: what the place named in `sentence` is a part of."""
    reason, param = WHERE.sub("", sentence).replace(" | null`", "`"), field
    if len(reason) > SHOWN_REASON:
        reason = f"{reason[:SHOWN_REASON]}..."
    if place := WHERE.search(sentence):
        param = field + place[1]
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return bad_request(f"`{param}` is missing.", param, "missing_required_parameter")
    if reason.startswith("Expected `null`"):
        return bad_request(f"`{param}` is not supported by this server; leave it out.", param, "unsupported_parameter")
    if re.search(r"content\[\d+\]\.type$", param):
        return bad_request(f"`{param}`: {reason}; this model reads text only, so send parts of type 'text'.", param)
    if not param:
        return bad_request(f"The body is not what this endpoint takes: {reason[0].lower()}{reason[1:]}.")
    return bad_request(f"`{param}` is invalid: {reason[0].lower()}{reason[1:]}.", param, "invalid_value")


def check_model(model: str, wire: Wire) -> None:
    """A 404 for a model that is not the one served."""
    if model not in wire.model_names:
        raise model_not_found(model if len(model) <= 100 else f"{model[:97]}...")
