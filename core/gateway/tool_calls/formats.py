"""The forms in which models write tool calls, and which of them a chat template teaches."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...model.chat import template_of


@dataclass(frozen=True, slots=True)
class Format:
    """Text, then a marker, then calls in JSON: one, several behind each other, or a list."""

    name: str
    begin: str
    """The marker before calls. A model may have it as a special token, which leaves no text: see `bare`."""
    end: str = ""
    """The marker behind them; nothing where the output's end is theirs."""
    bare: str = ""
    """The character with which calls begin that have no marker, at the very start of an output."""
    separator: str = ""
    """Between calls that are no list."""
    arguments_key: str = "arguments"
    id_prefix: str = "call_"
    id_length: int = 24
    """Random characters behind the prefix."""

    def new_id(self) -> str:
        """The id of a call, of its own in any conversation."""
        return self.id_prefix + secrets.token_hex(self.id_length)[: self.id_length]


HERMES = Format("hermes", begin="<tool_call>", end="</tool_call>")
"""Hermes 2 and 3, Qwen 2.5 and 3, SmolLM 2 and 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
LLAMA3_JSON = Format("llama3_json", begin="<|python_tag|>", bare="{", separator=";", arguments_key="parameters")
"""Llama 3.1 to 3.3: `{"name": ..., "parameters": {...}}` as the whole output, several separated by semicolons."""
MISTRAL = Format("mistral", begin="[TOOL_CALLS]", bare="[", id_prefix="", id_length=9)
"""Mistral until mid 2025: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`; its template takes ids of 9 letters."""


@dataclass(frozen=True, slots=True)
class Detected:
    """A template's form of calls, if it is one of ours, and why."""

    format: Format | None
    reason: str


def detect(tokenizer_config: Mapping[str, Any]) -> Detected:
    """The form of calls that a model's chat template teaches, by the marks that the template itself writes."""
    template = template_of(tokenizer_config, for_tools=True)
    if re.search(r"\btools\b", template) is None:
        return Detected(None, "the model's chat template has no place for tools")
    for mark, stranger in STRANGERS.items():
        if mark in template:
            return Detected(None, f"the chat template writes calls in the form of {stranger}, which is not read here")
    for format, marks in MARKS.items():
        if all(mark in template for mark in marks):
            return Detected(format, f"the chat template has {' and '.join(marks)}")
    return Detected(None, "the chat template writes calls in a form that is not known here")


MARKS: Mapping[Format, tuple[str, ...]] = {
    HERMES: ("<tool_call>", "arguments"),
    MISTRAL: ("[TOOL_CALLS]",),
    LLAMA3_JSON: ('"parameters": dictionary of argument name',),
}

STRANGERS: Mapping[str, str] = {
    "<function=": "Qwen3-Coder",
    "<arg_key>": "GLM-4.5",
    "[ARGS]": "Mistral since mid 2025",
}
"""Marks of forms that share a marker with one of ours and differ behind it."""
