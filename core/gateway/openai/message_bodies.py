"""The messages of a conversation, one record for each role, and the plain form that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct


class TextPart(Struct, tag_field="type", tag="text", kw_only=True):
    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal", kw_only=True):
    refusal: str


Content = str | list[TextPart | RefusalPart]
"""A text, whole or in parts. There are no parts for images or sound: the models read text."""


class FunctionCall(Struct, kw_only=True):
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(Struct, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class SystemMessage(Struct, tag_field="role", tag="system", kw_only=True):
    content: Content
    name: str | None = None


class DeveloperMessage(Struct, tag_field="role", tag="developer", kw_only=True):
    """The newer name of a system message."""

    content: Content
    name: str | None = None


class UserMessage(Struct, tag_field="role", tag="user", kw_only=True):
    content: Content
    name: str | None = None


class AssistantMessage(Struct, tag_field="role", tag="assistant", kw_only=True):
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    """The older form of a single tool call."""


class ToolMessage(Struct, tag_field="role", tag="tool", kw_only=True):
    content: Content
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Struct, tag_field="role", tag="function", kw_only=True):
    """The older form of a tool message."""

    content: str | None
    name: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


def conversation(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """The messages as chat templates know them: `role` and `content`, a text, and what else there is of them."""
    return tuple(_plain(message) for message in messages)


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": _role(message), "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    match message:
        case ToolMessage():
            plain["tool_call_id"] = message.tool_call_id
        case AssistantMessage():
            plain["content"] = plain["content"] or message.refusal or ""
            if message.reasoning_content is not None:
                plain["reasoning_content"] = message.reasoning_content
            if calls := _calls(message):
                plain["tool_calls"] = calls
    return plain


def _role(message: Message) -> str:
    match message:
        case DeveloperMessage():
            return "system"
        case FunctionMessage():
            return "tool"
    return str(message.__struct_config__.tag)


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _calls(message: AssistantMessage) -> list[dict[str, Any]]:
    calls = [
        {"id": call.id, "type": "function", "function": _function(call.function)} for call in message.tool_calls or ()
    ]
    if message.function_call is not None:
        calls.append({"type": "function", "function": _function(message.function_call)})
    return calls


def _function(call: FunctionCall) -> dict[str, Any]:
    """Templates write the arguments themselves, so they want the object; what is none stays the text it was."""
    try:
        arguments: object = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    return {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else call.arguments}
