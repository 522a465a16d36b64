"""The bodies of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .common_bodies import AtLeastOne, FinishReason, NumLogprobs, OptionalUsage, PromptLogprobs, SamplingFields, Usage
from .message_bodies import Message, ToolCall
from .tool_bodies import ResponseFormat, Tool, ToolChoice

Messages = Annotated[list[Message], Meta(min_length=1)]
Tools = Annotated[list[Tool], Meta(max_length=128)]
TemplateVariables = dict[str, Any]
"""Names of the model's own chat template, such as `enable_thinking`."""


class ChatRequest(SamplingFields, kw_only=True):
    messages: Messages
    max_completion_tokens: AtLeastOne | None = None
    """Counts more than its older name `max_tokens`; without either the output may fill the model's context."""
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None

    # not OpenAI's
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """Go on with the last message, which is the assistant's, instead of beginning a new one."""

    # OpenAI's, and refused
    audio: None = None
    functions: None = None
    function_call: None = None
    web_search_options: None = None


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    """The token's own, which may be only a part of a character."""


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs = UNSET


class FunctionDelta(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallPiece(Struct, kw_only=True):
    """Id, type and name come with the first piece of a call; the arguments are appended."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: OptionalUsage = UNSET
