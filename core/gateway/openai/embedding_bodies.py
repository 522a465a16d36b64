"""The bodies of `/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .common_bodies import PromptUsage, Urgency
from .prompt_bodies import Prompt


class EmbeddingRequest(Urgency, kw_only=True):
    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or base64 of float32, lowest byte first."""
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    """Keep only the first ones."""
    user: str | None = None

    # not OpenAI's
    pooling: Literal["mean", "last"] | None = None
    """Over the prompt's tokens, or of the last of them."""
    normalize: bool | None = None
    """To length 1, unless false."""
    add_special_tokens: bool | None = None


class EmbeddingEntry(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: PromptUsage
