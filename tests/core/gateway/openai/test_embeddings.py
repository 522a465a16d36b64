"""Vectors on the wire."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from switchgear.core.gateway.openai.embeddings import EmbeddingCall, Vector, parse_embedding, render_embeddings
from switchgear.core.gateway.openai.errors import ApiError

from .made import WIRE, body


@dataclass
class Embedded:
    vector: Vector
    num_tokens: int


def parse(**fields: Any) -> EmbeddingCall:
    return parse_embedding(body(**{"input": "hi", **fields}), WIRE)


def vectors_of(call: EmbeddingCall, *vectors: list[float]) -> list[list[float]]:
    embedded = [Embedded(np.array(vector, dtype=np.float32), 3) for vector in vectors]
    answer = CreateEmbeddingResponse.model_validate_json(render_embeddings(call, embedded), strict=True)
    return [entry.embedding for entry in answer.data]


def test_a_plain_body() -> None:
    call = parse()
    assert [ask.prompt for ask in call.asks] == ["hi"]
    assert (call.pooling, call.normalizes, call.is_base64, call.dimensions) == ("mean", True, False, None)


def test_every_field_arrives() -> None:
    call = parse(input=[[1, 2], [3]], pooling="last", normalize=False, dimensions=8, priority=2, deadline=3.0)
    assert [ask.prompt for ask in call.asks] == [(1, 2), (3,)]
    assert (call.pooling, call.normalizes, call.dimensions) == ("last", False, 8)
    assert (call.priority, call.deadline_seconds) == (2, 3.0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [""] * 2049}, "input"),
        ({"input": [50]}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 9}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
        ({"normalize": 1}, "normalize"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_vectors_have_length_one_unless_that_was_not_wanted() -> None:
    assert vectors_of(parse(), [3.0, 4.0]) == [pytest.approx([0.6, 0.8])]
    assert vectors_of(parse(normalize=False), [3.0, 4.0]) == [[3.0, 4.0]]
    assert vectors_of(parse(), [0.0, 0.0]) == [[0.0, 0.0]]


def test_fewer_dimensions_have_length_one_again() -> None:
    assert vectors_of(parse(dimensions=1), [3.0, 4.0]) == [[1.0]]


def test_base64_is_float32_with_the_lowest_byte_first() -> None:
    embedded = [Embedded(np.array([3.0, 4.0], dtype=np.float32), 3)]
    answer = render_embeddings(parse(encoding_format="base64", normalize=False), embedded)
    encoded = base64.b64encode(bytes.fromhex("0000404000008040")).decode()
    assert f'"embedding":"{encoded}"'.encode() in answer


def test_usage_counts_the_tokens_of_all_inputs() -> None:
    embedded = [Embedded(np.ones(2, dtype=np.float32), count) for count in (3, 4)]
    answer = render_embeddings(parse(input=["a", "b"]), embedded)
    assert answer.endswith(b'"model":"tiny","usage":{"prompt_tokens":7,"total_tokens":7}}')
