"""The bodies of `/tokenize` and `/detokenize`. Not OpenAI's."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .chat_bodies import Messages, TemplateVariables, Tools
from .common_bodies import TokenId


class TokenizeRequest(Struct, kw_only=True):
    """Either a prompt or the messages of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    """Of a prompt only: a chat template puts what the model needs."""
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=2**20)]


class DetokenizeAnswer(Struct, kw_only=True):
    prompt: str
