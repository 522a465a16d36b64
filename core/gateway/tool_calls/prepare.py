"""What a request with tools or a response format needs: a structure that is demanded, and a parser of what comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...sampling_params import Structure
from ..openai.errors import bad_request
from ..openai.tool_bodies import NamedToolChoice, ResponseFormat, Tool, ToolChoice
from ..openai.tool_deltas import ToolParser
from .forced_calls import calls_grammar, structure_of
from .formats import Format, detect
from .parser import CallParser


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the answer to one request is enforced and read."""

    structure: Structure | None = None
    """What each output must be; None where it may be anything."""
    make_parser: Callable[[], ToolParser] | None = None
    """For each output one of its own; None where there are no calls to look for."""


def prepare_tools(
    tools: Sequence[Tool],
    tool_choice: ToolChoice,
    tokenizer_config: Mapping[str, Any],
    *,
    parallel: bool = True,
    response_format: ResponseFormat | None = None,
) -> ToolUse:
    """Raises ApiError, one sentence, where the model cannot be shown tools or nobody here can read its calls.

    tool_choice: with "none" the tools are not shown and nothing is looked for; parallel: whether one answer may have
    several calls; response_format: of an answer that is no call.
    """
    answer = structure_of(response_format)
    if tool_choice == "none" or not tools:
        return ToolUse(answer)
    format = format_of(tokenizer_config)
    chosen = tools
    if isinstance(tool_choice, NamedToolChoice):
        chosen = [tool for tool in tools if tool.function.name == tool_choice.function.name]
    structure = None
    if tool_choice != "auto":
        structure = calls_grammar(format, chosen, is_several=parallel and tool_choice == "required")
    elif answer is not None:
        structure = calls_grammar(format, chosen, is_several=parallel, answer=answer)
    names = frozenset(tool.function.name for tool in tools)
    return ToolUse(structure, partial(CallParser, format, names))


def format_of(tokenizer_config: Mapping[str, Any]) -> Format:
    """Raises ApiError for a template without a place for tools, and for a form of calls that nobody here can read."""
    detected = detect(tokenizer_config)
    if detected.format is None:
        remedy = "leave them out or use another model"
        raise bad_request(f"`tools` cannot be used with this model: {detected.reason}; {remedy}.", "tools")
    return detected.format
