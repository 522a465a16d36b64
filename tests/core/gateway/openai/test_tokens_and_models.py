"""Tokens of a text, texts of tokens, and the list of models."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types import Model
from switchgear.core.gateway.openai.errors import ApiError
from switchgear.core.gateway.openai.models import get_model, list_models
from switchgear.core.gateway.openai.tokens import (
    parse_detokenize,
    parse_tokenize,
    render_detokenize,
    render_tokenize,
)

from .made import CREATED, WIRE, decode


def encode(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def test_a_prompt_to_tokens() -> None:
    call = parse_tokenize(encode(prompt="hi", add_special_tokens=False), WIRE)
    assert (call.ask.prompt, call.ask.add_special) == ("hi", False)
    answer = msgspec.json.decode(render_tokenize(call, [7, 8], WIRE, lambda token_id: decode([token_id])))
    assert answer == {"count": 2, "max_model_len": 100, "tokens": [7, 8], "token_strs": None}


def test_a_conversation_to_tokens_and_their_texts() -> None:
    body = encode(messages=[{"role": "user", "content": "hi"}], return_token_strs=True, add_generation_prompt=False)
    call = parse_tokenize(body, WIRE)
    assert call.ask.messages == ({"role": "user", "content": "hi"},)
    assert (call.ask.template, call.ask.add_special) == ({"add_generation_prompt": False}, False)
    answer = msgspec.json.decode(render_tokenize(call, [7, 8], WIRE, lambda token_id: decode([token_id])))
    assert answer["token_strs"] == ["h", "i"]


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({}, "prompt", 400),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt", 400),
        ({"prompt": 3}, "prompt", 400),
        ({"messages": []}, "messages", 400),
        ({"prompt": "a", "model": "other"}, "model", 404),
    ],
)
def test_a_wrong_body_to_tokenize(fields: dict[str, Any], param: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        parse_tokenize(encode(**fields), WIRE)
    assert (caught.value.status, caught.value.param) == (status, param)


def test_tokens_to_a_text() -> None:
    assert parse_detokenize(encode(tokens=[7, 8], model="alias"), WIRE) == (7, 8)
    assert parse_detokenize(encode(tokens=[]), WIRE) == ()
    assert render_detokenize("h\ni") == b'{"prompt":"h\\ni"}'


@pytest.mark.parametrize(("tokens", "param"), [([50], "tokens"), ([-1], "tokens[0]"), ("hi", "tokens")])
def test_wrong_tokens(tokens: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_detokenize(encode(tokens=tokens), WIRE)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_models_under_each_of_their_names() -> None:
    answer = msgspec.json.decode(list_models(WIRE, CREATED))
    assert answer["object"] == "list"
    models = [Model.model_validate(entry) for entry in answer["data"]]
    assert [(model.id, model.object, model.created) for model in models] == [
        ("tiny", "model", CREATED),
        ("alias", "model", CREATED),
    ]
    assert Model.model_validate_json(get_model("alias", WIRE, CREATED)) == models[1]


def test_another_model_is_a_404() -> None:
    with pytest.raises(ApiError) as caught:
        get_model("gpt", WIRE, CREATED)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
