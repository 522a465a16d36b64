"""Grammars of tool calls, for requests that demand one, and of answers that have a form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...sampling_params import Structure
from ..openai.tool_bodies import JsonSchemaFormat, ResponseFormat, TextFormat, Tool
from .formats import Format

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As chat templates write JSON, and so as models learned it."""


def structure_of(response_format: ResponseFormat | None) -> Structure | None:
    """What an answer of this form must be; a schema that is not given is that of any object."""
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    if isinstance(response_format, JsonSchemaFormat) and response_format.json_schema.schema is not None:
        return Structure("json_schema", json.dumps(response_format.json_schema.schema))
    return Structure("json_object")


def calls_grammar(
    format: Format, tools: Sequence[Tool], *, is_several: bool, answer: Structure | None = None
) -> Structure:
    """Calls of these tools and nothing else, with arguments that keep to their schemas; or else the `answer`.

    A marker that nothing closes is left out: it is a special token, which stands for no text.
    """
    opening, closing, separator = marks_of(format)
    call = "call" if is_list(format) else f"{opening} call {closing}"
    calls = f"{call} ({json.dumps(separator)} {call})*" if is_several else call
    rules = [
        f"start: {'calls' if answer is None else 'calls | answer'}",
        f"calls: {opening} {calls} {closing}" if is_list(format) else f"calls: {calls}",
        f"call: {json_rule({'anyOf': [call_schema(format, tool) for tool in tools]})}",
    ]
    if answer is not None:
        rules.append(f"answer: {json_rule(json.loads(answer.text or '{}'))}")
    return Structure("grammar", "\n".join(rules))


def is_list(format: Format) -> bool:
    return format.bare == "["


def marks_of(format: Format) -> tuple[str, str, str]:
    """What stands before and behind calls, as the grammar spells it, and what stands between two, as it is."""
    if format.end:
        return json.dumps(f"{format.begin}\n"), json.dumps(f"\n{format.end}"), "\n"
    if is_list(format):
        return '"["', '"]"', ", "
    return "", "", f"{format.separator} "


def call_schema(format: Format, tool: Tool) -> dict[str, Any]:
    name = tool.function.name
    # a resource of its own, so that a `$ref` in it finds the `$defs` in it
    arguments = {"$id": f"tool:{name}", "type": "object", **(tool.function.parameters or NO_ARGUMENTS)}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, format.arguments_key: arguments},
        "required": ["name", format.arguments_key],
        "additionalProperties": False,
    }


NO_ARGUMENTS = {"properties": {}, "additionalProperties": False}


def json_rule(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps({'type': 'object', **schema, 'x-guidance': SPACING})}"
