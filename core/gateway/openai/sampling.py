"""From the fields of a body to sampling options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import RequestError
from ...sampling_params import SamplingParams
from .common_bodies import TOKEN_ID_KEY, SamplingFields
from .errors import ApiError, bad_request, refused
from .wire import Wire

AS_THEY_ARE = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "prompt_logprobs",
)
"""Fields with the same name and meaning on both sides."""


def sampling_params(body: SamplingFields, wire: Wire, **decided: Any) -> SamplingParams:
    """The options that `body` gives, and those that its endpoint decided. ApiError where they do not fit together."""
    given = {name: value for name in AS_THEY_ARE if (value := getattr(body, name)) is not None}
    biases = token_biases(body.logit_bias or {})
    try:
        params = SamplingParams(**{**given, "logit_bias": biases, **decided})
        params.check_vocabulary(wire.vocab_size)
    except RequestError as error:
        raise refused(error) from None
    return params


def token_biases(given: Mapping[str, float]) -> dict[int, float]:
    """By token id, where JSON has strings."""
    for key in given:
        if not re.fullmatch(TOKEN_ID_KEY, key):
            text = f"`logit_bias` must have token ids as keys, got {key[:20]!r}."
            raise bad_request(text, "logit_bias", "invalid_value")
    return {int(key): bias for key, bias in given.items()}


def check_stream(body: SamplingFields) -> None:
    """What cannot be asked of a stream, or only of one."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("`stream_options` is only allowed when `stream` is true.", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise only_whole("prompt_logprobs")


def only_whole(field: str) -> ApiError:
    return bad_request(f"`{field}` cannot be streamed; leave out `stream`.", field)


def includes_usage(body: SamplingFields) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)
