"""As much of JSON schema as the OpenAPI document uses: to check a value, and to make one up."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
Schemas = dict[str, Schema]

ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.sampled_from(["text", "user", "function", "auto", "json_schema"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "a", "5"]), inner),
    max_leaves=5,
)
TYPES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}


def resolved(schema: Schema, schemas: Schemas) -> Schema:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def is_valid(schema: Schema, value: Any, schemas: Schemas) -> bool:
    """Whether `value` is what `schema` describes."""
    schema = resolved(schema, schemas)
    if "anyOf" in schema and not any(is_valid(option, value, schemas) for option in schema["anyOf"]):
        return False
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        return False
    kind = schema.get("type")
    if kind is None:
        return True
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    match value:
        case str():
            return _is_in(len(value), schema, "minLength", "maxLength") and (
                "pattern" not in schema or re.search(schema["pattern"], value) is not None
            )
        case list():
            return _is_in(len(value), schema, "minItems", "maxItems") and all(
                is_valid(schema.get("items", {}), item, schemas) for item in value
            )
        case dict():
            return _is_valid_object(schema, value, schemas)
        case int() | float() if not isinstance(value, bool):
            return _is_in(value, schema, "minimum", "maximum") and value > schema.get("exclusiveMinimum", value - 1)
    return True


def _is_valid_object(schema: Schema, value: dict[str, Any], schemas: Schemas) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    return (
        all(name in value for name in schema.get("required", ()))
        and all(is_valid(properties.get(name, others), item, schemas) for name, item in value.items())
        and all(is_valid({"type": "string", **schema.get("propertyNames", {})}, name, schemas) for name in value)
        and _is_in(len(value), schema, "minProperties", "maxProperties")
    )


def _is_in(number: float, schema: Schema, low: str, high: str) -> bool:
    return bool(schema.get(low, number) <= number <= schema.get(high, number))


def values(schema: Schema, schemas: Schemas) -> st.SearchStrategy[Any]:
    """Values that `schema` describes, its limits among them."""
    schema = resolved(schema, schemas)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values(option, schemas) for option in schema["anyOf"]])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            is_open = "exclusiveMinimum" in schema
            return st.floats(low, schema.get("maximum"), exclude_min=is_open, allow_nan=False, allow_infinity=False)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            return st.text(st.characters(codec="utf-8"), min_size=schema.get("minLength", 0), max_size=6)
        case "array":
            item = values(schema.get("items", {}), schemas)
            return st.lists(item, min_size=schema.get("minItems", 0), max_size=min(3, schema.get("maxItems", 3)))
        case "object" if "properties" in schema:
            fields = {name: values(field, schemas) for name, field in schema["properties"].items()}
            required = {name: fields[name] for name in schema["required"]}
            optional = {name: field for name, field in fields.items() if name not in required}
            return st.fixed_dictionaries(required, optional=optional)
        case "object":
            keys = values({"type": "string", **schema.get("propertyNames", {})}, schemas)
            return st.dictionaries(keys, values(schema.get("additionalProperties", {}), schemas), max_size=3)
    return ANY_JSON
