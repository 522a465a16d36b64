"""When an output ends, for one token or for several that arrive at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Cut:
    """How many of the new tokens count, and whether they end the output."""

    num_tokens: int
    reason: Literal["stop", "length"] | None = None
    """None: the output goes on."""
    stop_token: int | None = None
    """The token that stopped it, which is the last of the `num_tokens`."""


def stop_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end an output: end-of-text unless ignored, and the request's own."""
    return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)


def cut(
    tokens: Sequence[int],
    *,
    num_prompt: int,
    num_output: int,
    params: SamplingParams,
    stops: frozenset[int],
    max_model_len: int,
) -> Cut:
    """Cut new tokens at the first that ends the output.

    tokens: the new ones, in order; num_output: output tokens before them; stops: from `stop_ids`. A stop token counts
    from output position `min_tokens` on (the sampler masks it until then) and belongs to the output. A token that both
    stops and is the last that fits is a stop.
    """
    room = min(params.max_tokens, max_model_len - num_prompt) - num_output
    assert room > 0, "the output had already ended"
    for index, token in enumerate(tokens[:room]):
        if token in stops and num_output + index >= params.min_tokens:
            return Cut(index + 1, "stop", int(token))
    return Cut(room, "length") if len(tokens) >= room else Cut(len(tokens))
