"""The bodies of `/v1/completions`."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct

from .common_bodies import Count, FinishReason, NumLogprobs, NumOutputs, OptionalUsage, PromptLogprobs, SamplingFields
from .prompt_bodies import Prompt


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: Prompt
    max_tokens: Count | None = None
    """16 without it. With 0 nothing is generated, which makes sense with `echo` and `logprobs`."""
    best_of: NumOutputs | None = None
    """Generate this many outputs and return the `n` best, by the mean log probability of their tokens."""
    echo: bool | None = None
    """Begin the text with the prompt."""
    logprobs: NumLogprobs | None = None
    add_special_tokens: bool | None = None
    """Not OpenAI's: whether the tokenizer adds what it puts around a text, such as BOS."""

    # OpenAI's, and refused
    suffix: None = None


class CompletionLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where in the choice's text each token begins, in characters."""


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs = UNSET


class Completion(Struct, kw_only=True):
    """A whole answer, or a chunk of one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: OptionalUsage = UNSET
