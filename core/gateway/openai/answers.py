"""Parts of an answer that chat and plain completions have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..results import PositionLogprobs, Result
from .common_bodies import FinishReason, PromptTokensDetails, Usage

LOWEST_LOGPROB = -9999.0
"""What OpenAI sends for a probability of zero, which JSON has no number for."""


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def finish_reason(reason: str) -> FinishReason:
    """In OpenAI's words: an output that something else cut off is one that is not complete."""
    match reason:
        case "stop" | "length" | "tool_calls" | "content_filter" | "function_call":
            return reason
    return "length"


def usage_of(results: Iterable[Result], counts_output: bool = True) -> Usage:
    """Tokens of all prompts, and of all outputs, also of those that were not chosen."""
    results = list(results)
    num_prompt = sum(len(result.prompt_token_ids) for result in results)
    num_output = sum(len(choice.token_ids) for result in results for choice in result.choices) if counts_output else 0
    num_cached = sum(result.num_cached_tokens for result in results)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )


def prompt_logprobs(positions: Iterable[PositionLogprobs | None]) -> list[dict[str, dict[str, Any]] | None]:
    """For each prompt token what was likely there, by token id; the token itself is always among them."""
    return [None if position is None else _by_token_id(position) for position in positions]


def _by_token_id(position: PositionLogprobs) -> dict[str, dict[str, Any]]:
    ranked = [(position.chosen, position.rank), *((entry, rank) for rank, entry in enumerate(position.top, start=1))]
    return {
        str(entry.token_id): {"logprob": finite(entry.logprob), "rank": rank, "decoded_token": entry.token}
        for entry, rank in reversed(ranked)
    }
