"""The OpenAPI document and the parsers agree on every field, and no body whatsoever does more harm than a 400."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchgear.core.gateway.openai.chat import parse_chat
from switchgear.core.gateway.openai.completions import parse_completion
from switchgear.core.gateway.openai.embeddings import parse_embedding
from switchgear.core.gateway.openai.errors import ApiError
from switchgear.core.gateway.openai.schema import openapi
from switchgear.core.gateway.openai.tokens import parse_detokenize, parse_tokenize
from switchgear.core.gateway.openai.wire import Wire

from .json_schema import ANY_JSON, Schemas, is_valid, values

# large enough that what is said of a field is never said of the model
WIRE = Wire(model_names=("tiny",), max_model_len=100, vocab_size=2**31, embedding_size=2**20)
DOCUMENT = openapi("0.1.0", WIRE.model_names)
SCHEMAS: Schemas = DOCUMENT["components"]["schemas"]
Parse = Callable[[bytes, Wire], object]
PARSERS: dict[str, Parse] = {
    "ChatRequest": parse_chat,
    "CompletionRequest": parse_completion,
    "EmbeddingRequest": parse_embedding,
    "TokenizeRequest": parse_tokenize,
    "DetokenizeRequest": parse_detokenize,
}
SMALLEST: dict[str, dict[str, Any]] = {
    "ChatRequest": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "CompletionRequest": {"model": "tiny", "prompt": "hi"},
    "EmbeddingRequest": {"model": "tiny", "input": "hi"},
    "TokenizeRequest": {"prompt": "hi"},
    "DetokenizeRequest": {"tokens": [1]},
}
FIELDS = [(name, field) for name in PARSERS for field in SCHEMAS[name]["properties"]]
OF_A_FIELD = ("invalid_value", "missing_required_parameter", "unsupported_parameter", "model_not_found")
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def refusal(name: str, body: Any) -> ApiError | None:
    """The only thing that a parser may raise."""
    try:
        PARSERS[name](msgspec.json.encode(body), WIRE)
    except ApiError as error:
        assert error.status in (400, 404)
        assert set(error.body()["error"]) == {"message", "type", "param", "code"}
        return error
    return None


@pytest.mark.parametrize("name", PARSERS)
@few
@given(data=st.data())
def test_what_the_document_allows_the_parser_takes(name: str, data: st.DataObject) -> None:
    body = data.draw(values(SCHEMAS[name], SCHEMAS))
    assert is_valid(SCHEMAS[name], body, SCHEMAS)
    error = refusal(name, body)
    # fields that are right one by one may still not go together
    assert error is None or error.code not in OF_A_FIELD or error.param in ("chat_template_kwargs", "prompt", "input")


@pytest.mark.parametrize(("name", "field"), FIELDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=ANY_JSON)
def test_what_the_document_forbids_the_parser_refuses_by_name(name: str, field: str, value: Any) -> None:
    error = refusal(name, {**SMALLEST[name], field: value})
    if is_valid(SCHEMAS[name]["properties"][field], value, SCHEMAS):
        assert error is None or error.code not in OF_A_FIELD
    else:
        assert error is not None, f"{value!r} is not what the document describes"
        assert error.param is not None and error.param.startswith(field)


@pytest.mark.parametrize("name", PARSERS)
@few
@given(data=st.data())
def test_a_body_with_one_thing_wrong_somewhere_is_at_worst_refused(name: str, data: st.DataObject) -> None:
    body = data.draw(values(SCHEMAS[name], SCHEMAS))
    places = list(_places(body))
    holder, key = data.draw(st.sampled_from(places)) if places else ({}, "x")
    holder[key] = data.draw(ANY_JSON)
    refusal(name, body)


@few
@given(name=st.sampled_from(list(PARSERS)), body=st.binary(max_size=60) | ANY_JSON.map(msgspec.json.encode))
def test_any_bytes_are_at_worst_refused(name: str, body: bytes) -> None:
    try:
        PARSERS[name](body, WIRE)
    except ApiError as error:
        assert error.status in (400, 404)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def test_every_reference_leads_somewhere() -> None:
    references = {found for found in _references(DOCUMENT)}
    assert references <= {f"#/components/schemas/{name}" for name in SCHEMAS}
    assert len(references) > 20


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        yield from (found for child in node.values() for found in _references(child))
    elif isinstance(node, list):
        yield from (found for child in node for found in _references(child))


def test_every_path_of_the_server_is_described_with_its_errors() -> None:
    paths = DOCUMENT["paths"]
    assert set(paths) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{model}",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
        "/plan",
        "/openapi.json",
        "/admin/{plugin}/{command}",
    }
    for path in paths.values():
        for method in path.keys() & {"get", "post"}:
            responses = path[method]["responses"]
            assert {"200", "401", "500"} <= responses.keys()
            if method == "post":
                assert {"400", "404", "413", "429", "503"} <= responses.keys()
                assert {"retry-after", "retry-after-ms"} <= responses["429"]["headers"].keys()
    chat = paths["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(chat) == {"application/json", "text/event-stream"}


def test_limits_stand_in_the_document() -> None:
    fields = SCHEMAS["ChatRequest"]["properties"]
    assert fields["model"]["enum"] == ["tiny"]
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 128}
    assert fields["logit_bias"]["anyOf"][0]["maxProperties"] == 1024
    assert fields["top_p"]["anyOf"][0]["exclusiveMinimum"] == 0


def test_a_key_is_asked_for_where_there_are_keys() -> None:
    assert "security" not in DOCUMENT
    guarded = openapi("0.1.0", needs_key=True)
    assert guarded["security"] == [{"key": []}]
    assert guarded["paths"]["/health"]["get"]["security"] == []
    assert "enum" not in guarded["components"]["schemas"]["ChatRequest"]["properties"]["model"]


def test_the_document_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT
