"""`POST /v1/embeddings`: texts in, vectors out."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from msgspec.json import Decoder, encode

from ..ask import Ask
from ..embedding import normalized
from .common_bodies import PromptUsage
from .decoding import check_model, decode
from .embedding_bodies import EmbeddingEntry, EmbeddingRequest, Embeddings
from .errors import bad_request
from .prompt_bodies import prompts_of
from .wire import Wire

Vector = np.ndarray[Any, np.dtype[np.float32]]

_decoder = Decoder(EmbeddingRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCall:
    """Prompts of which the vectors are wanted."""

    asks: tuple[Ask, ...]
    model: str
    pooling: Literal["mean", "last"] = "mean"
    dimensions: int | None = None
    normalizes: bool = True
    is_base64: bool = False
    priority: int = 0
    deadline_seconds: float | None = None


class Embedded(Protocol):
    """What the service makes of a prompt."""

    @property
    def vector(self) -> Vector:
        """`[E]`"""
        ...

    @property
    def num_tokens(self) -> int: ...


def parse_embedding(body: bytes, wire: Wire) -> EmbeddingCall:
    """Raises ApiError, with the field, for a body that cannot be served."""
    request = decode(body, _decoder)
    check_model(request.model, wire)
    if request.dimensions is not None and request.dimensions > wire.embedding_size:
        text = f"`dimensions` must be from 1 to {wire.embedding_size}, which is what the model has."
        raise bad_request(text, "dimensions", "invalid_value")
    asks = tuple(
        Ask(prompt=prompt, add_special=request.add_special_tokens is not False)
        for prompt in prompts_of(request.input, "input", wire)
    )
    return EmbeddingCall(
        asks=asks,
        model=request.model,
        pooling=request.pooling or "mean",
        dimensions=request.dimensions,
        normalizes=request.normalize is not False,
        is_base64=request.encoding_format == "base64",
        priority=request.priority or 0,
        deadline_seconds=request.deadline,
    )


def render_embeddings(call: EmbeddingCall, embedded: Sequence[Embedded]) -> bytes:
    """The answer, from one vector for each of the call's prompts."""
    num_tokens = sum(entry.num_tokens for entry in embedded)
    return encode(
        Embeddings(
            data=[
                EmbeddingEntry(index=index, embedding=_embedding(call, entry.vector))
                for index, entry in enumerate(embedded)
            ],
            model=call.model,
            usage=PromptUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
    )


def _embedding(call: EmbeddingCall, vector: Vector) -> list[float] | str:
    kept = vector[: call.dimensions]
    kept = normalized(kept) if call.normalizes else kept
    if call.is_base64:
        return base64.b64encode(kept.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = kept.tolist()
    return numbers
