"""Fields that bodies share. A type and its limits stand here once: the parser and the OpenAPI page both read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, UnsetType

from ...sampling_params import (
    MAX_BIASES,
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
)

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
AtLeastOne = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
NumOutputs = Annotated[int, Meta(ge=1, le=128)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
TOKEN_ID_KEY = "^(0|[1-9][0-9]{0,8})$"
TokenIdKey = Annotated[str, Meta(extra_json_schema={"pattern": TOKEN_ID_KEY})]
"""JSON has no numbers as keys. `token_biases` looks at them once it is known that there are not too many."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[
    list[StopString],
    Meta(max_length=MAX_STOP_STRINGS, description=f"OpenAI takes 4; here it may be {MAX_STOP_STRINGS}."),
]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class Urgency(Struct, kw_only=True):
    """When an answer is wanted."""

    priority: Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT, description="Lower runs first.")] | None = None
    deadline: (
        Annotated[float, Meta(gt=0, le=86_400, description="Seconds from now after which there is no answer.")] | None
    ) = None


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    """Whether a last chunk without choices counts the tokens."""


class SamplingFields(Urgency, kw_only=True):
    """What chat and plain completions have in common. `null` is the same as leaving a field out."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: AtLeastOne | None = None
    n: NumOutputs | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | StopStrings | None = None
    logit_bias: (
        Annotated[dict[TokenIdKey, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None
    ) = None

    # not OpenAI's
    top_k: Count | None = None
    min_p: Fraction | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: NumLogprobs | None = None

    # taken and without effect
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int
    """Not computed again, since the prefix cache had them."""


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptUsage(Struct, kw_only=True):
    """Of a call that generates nothing."""

    prompt_tokens: int
    total_tokens: int


OptionalUsage = Usage | None | UnsetType
"""Left out of a stream's chunks, null where the last one will have it."""

PromptLogprobs = list[dict[str, dict[str, Any]] | None] | None | UnsetType
"""For each prompt token, by token id: `logprob`, `rank` and `decoded_token`; null for the first."""


class Error(Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    """The field that is wrong."""
    code: str | None


class ErrorBody(Struct, kw_only=True):
    error: Error
