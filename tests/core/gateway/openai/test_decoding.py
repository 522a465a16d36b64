"""Bodies that are no JSON, or no JSON that anybody asked for."""

from __future__ import annotations

import pytest
from switchgear.core.gateway.openai.chat import parse_chat
from switchgear.core.gateway.openai.errors import ApiError

from .made import WIRE, chat_body


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(body, WIRE)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"model": "tiny", "temperature": NaN}',
        b'{"model": "tiny", "temperature": Infinity}',
        chat_body() + b" more",
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b"{'model': 'tiny'}",
        b'{"model": "tiny",}',
    ],
)
def test_what_is_not_json_is_a_400(body: bytes) -> None:
    error = refusal(body)
    assert error.status == 400
    assert "not valid JSON" in error.message


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDBFF\\u0041", "\\udc00", "a\\udfff"])
def test_a_lone_surrogate_is_a_400_that_says_so(escape: str) -> None:
    error = refusal(f'{{"model": "{escape}"}}'.encode())
    assert error.status == 400
    assert "surrogate" in error.message


@pytest.mark.parametrize("body", [chat_body(messages=[{"role": "x" * 100_000}]), chat_body(tool_choice="x" * 100_000)])
def test_a_wrong_value_is_not_repeated_in_full(body: bytes) -> None:
    error = refusal(body)
    assert error.status == 400 and error.param is not None
    assert len(error.message) < 400


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"', b"true"])
def test_a_body_that_is_no_object_is_a_400(body: bytes) -> None:
    error = refusal(body)
    assert (error.status, error.param) == (400, None)
    assert "expected `object`" in error.message


@pytest.mark.parametrize("field", ["unknown", "chat_template_kwargs", "messages", "tools"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_json_is_a_400(field: str, opening: bytes, closing: bytes) -> None:
    deep = opening * 100_000 + b"1" + closing * 100_000
    error = refusal(b'{"model": "tiny", "%s": %s}' % (field.encode(), deep))
    assert error.status == 400


def test_of_a_key_that_is_given_twice_the_last_counts() -> None:
    twice = chat_body(seed=1)[:-1] + b', "seed": 2}'
    assert parse_chat(twice, WIRE).ask.params.seed == 2


def test_unknown_fields_are_taken() -> None:
    assert parse_chat(chat_body(something_new={"a": [1]}), WIRE).model == "tiny"


def test_a_million_biases_are_a_400() -> None:
    error = refusal(chat_body(logit_bias={str(token): 1 for token in range(1_000_000)}))
    assert (error.status, error.param) == (400, "logit_bias")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_an_integer_of_any_size_is_a_400(number: int) -> None:
    for field in ("seed", "n", "max_tokens", "priority", "top_logprobs"):
        body = chat_body()[:-1] + f', "{field}": {number}}}'.encode()
        error = refusal(body)
        assert (error.status, error.param) == (400, field)


def test_a_number_too_large_for_a_float_is_a_400() -> None:
    error = refusal(chat_body()[:-1] + b', "temperature": 1e999}')
    assert (error.status, error.param) == (400, "temperature")


def test_another_model_is_a_404_whose_text_stays_short() -> None:
    error = refusal(chat_body(model="x" * 10_000))
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert len(error.message) < 250


def test_every_name_of_the_model_is_taken_and_repeated() -> None:
    assert parse_chat(chat_body(model="alias"), WIRE).model == "alias"
