"""The tools that a model may call, and the form that its answer must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
JsonSchemaObject = dict[str, Any]


class FunctionDefinition(Struct, kw_only=True):
    name: Name
    description: str | None = None
    parameters: JsonSchemaObject | None = None
    """JSON schema of the arguments; without one the function takes none."""
    strict: bool | None = None
    """Whether the arguments must follow the schema to the letter."""


class Tool(Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Struct, kw_only=True):
    name: Name


class NamedToolChoice(Struct, kw_only=True):
    """The model must call this one."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class TextFormat(Struct, tag_field="type", tag="text"):
    """Whatever the model says."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Some JSON object."""


class JsonSchema(Struct, kw_only=True):
    name: Name
    description: str | None = None
    schema: JsonSchemaObject | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", kw_only=True):
    """JSON that a schema describes."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def for_template(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates know them, which take `parameters` for granted."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]
