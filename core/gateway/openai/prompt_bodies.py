"""Prompts: a text, token ids, or several of either kind in one call."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from msgspec.json import schema

from .common_bodies import TokenId
from .decoding import convert
from .errors import bad_request
from .wire import Wire

MAX_PROMPTS = 2048

TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)]
ManyTokenIds = Annotated[list[TokenIds], Meta(min_length=1, max_length=MAX_PROMPTS)]

Prompt = Annotated[
    Any,  # a union of arrays is more than the parser can tell apart: `prompts_of` looks at the first entry
    Meta(extra_json_schema={"anyOf": [schema(kind) for kind in (str, Texts, TokenIds, ManyTokenIds)]}),
]


def prompts_of(given: Any, field: str, wire: Wire) -> tuple[str | tuple[int, ...], ...]:
    """Every prompt in the content of `field`; a 400 for anything else and for token ids that the model lacks."""
    if isinstance(given, str):
        return (given,)
    first = given[0] if isinstance(given, list) and given else 0
    if isinstance(first, str):
        return tuple(convert(given, Texts, field))
    many = convert(given, ManyTokenIds, field) if isinstance(first, list) else [convert(given, TokenIds, field)]
    largest = max(map(max, many))
    if largest >= wire.vocab_size:
        last = wire.vocab_size - 1
        raise bad_request(f"`{field}` must hold token ids from 0 to {last}, got {largest}.", field, "invalid_value")
    return tuple(map(tuple, many))
