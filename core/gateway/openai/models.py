"""`GET /v1/models`: what is served here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.json import encode

from .decoding import check_model
from .wire import Wire


class Model(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["switchgear"] = "switchgear"
    max_model_len: int
    """Tokens of prompt and output together. Not OpenAI's."""


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


def list_models(wire: Wire, created: int) -> bytes:
    """created: Unix time at which the server came up."""
    models = [Model(id=name, created=created, max_model_len=wire.max_model_len) for name in wire.model_names]
    return encode(ModelList(data=models))


def get_model(name: str, wire: Wire, created: int) -> bytes:
    """Raises ApiError, a 404, for any other model."""
    check_model(name, wire)
    return encode(Model(id=name, created=created, max_model_len=wire.max_model_len))
