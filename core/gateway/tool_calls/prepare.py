"""What a request with tools needs: a template that shows them, a parser of the answer, and a structure that forces it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...sampling_params import Structure
from ..openai.errors import bad_request
from ..openai.tool_deltas import ToolParser
from .formats import Detected, Format, detect
from .parser import CallParser

Tool = Mapping[str, Any]
"""As chat templates know it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the tools of one request are shown, enforced and read."""

    template: Mapping[str, object]
    """For the chat template."""
    structure: Structure | None = None
    """What the output must be, where a call is demanded."""
    make_parser: Callable[[], ToolParser] | None = None
    """For each output a parser of its own; None where the output is text and nothing else."""


def prepare_tools(
    tools: Sequence[Tool],
    tool_choice: str,
    tokenizer_config: Mapping[str, Any],
    *,
    name: str = "",
    parallel: bool = True,
    has_structure: bool = False,
) -> ToolUse:
    """Raises ApiError, one sentence, where the model cannot be shown tools or its calls cannot be read.

    tool_choice: "none", "auto", "required", or "function" for the one called `name`; parallel: whether one answer may
    have several calls; has_structure: the answer is to keep to a structure of its own (`response_format`).
    """
    if tool_choice == "none" or not tools:
        return ToolUse({})
    detected = detect(tokenizer_config)
    format = checked(detected)
    is_forced = tool_choice != "auto"
    if has_structure and is_forced:
        raise bad_request(
            "`response_format` excludes a `tool_choice` that demands a call; leave one out.", "tool_choice"
        )
    parser = None if has_structure else partial(CallParser, format, frozenset(map(name_of, tools)))
    chosen = [tool for tool in tools if tool_choice != "function" or name_of(tool) == name]
    is_several = parallel and tool_choice == "required"
    structure = forced_calls(format, chosen, is_several) if is_forced else None
    return ToolUse({"tools": list(tools)}, structure, parser)


def checked(detected: Detected) -> Format:
    if not detected.has_tools:
        raise bad_request(
            f"`tools` cannot be used: {detected.reason}; leave them out or use a model that was made for them.", "tools"
        )
    if detected.format is None:
        raise bad_request(
            f"`tools` cannot be used: {detected.reason}, which is not read here; leave them out or use another model.",
            "tools",
        )
    return detected.format


def name_of(tool: Tool) -> str:
    return str(tool["function"]["name"])


# -- demanded calls -------------------------------------------------------------------------------------------------

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As the templates write JSON, and so as the models learned it."""


def forced_calls(format: Format, tools: Sequence[Tool], is_several: bool) -> Structure:
    """A grammar of nothing but calls of these tools, with arguments that keep to their schemas.

    A marker without a closing one is left out: it is a special token, which has no text.
    """
    call = {"x-guidance": SPACING, "anyOf": [call_schema(format, tool) for tool in tools]}
    one, separator = "call", format.separator
    if format.end:
        one, separator = f"{json.dumps(format.begin + chr(10))} call {json.dumps(chr(10) + format.end)}", "\n"
    elif format.bare == "[":
        separator = ", "
    calls = f"one ({json.dumps(separator)} one)*" if is_several else "one"
    start = f'"[" {calls} "]"' if format.bare == "[" else calls
    return Structure("grammar", f"start: {start}\none: {one}\ncall: %json {json.dumps(call)}")


def call_schema(format: Format, tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": name_of(tool)},
            format.arguments_key: tool["function"].get("parameters") or {"type": "object", "properties": {}},
        },
        "required": ["name", format.arguments_key],
        "additionalProperties": False,
    }
