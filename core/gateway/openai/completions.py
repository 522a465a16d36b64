"""`POST /v1/completions`: from a body to what is asked."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.json import Decoder

from ..ask import Ask
from .completion_bodies import CompletionRequest
from .decoding import check_model, decode
from .errors import bad_request
from .prompt_bodies import prompts_of
from .sampling import check_stream, includes_usage, only_whole, sampling_params
from .wire import Call, Wire

DEFAULT_MAX_TOKENS = 16
MAX_OUTPUTS = 2048
"""Of one call, which takes one place in the server however much it asks for."""

_decoder = Decoder(CompletionRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall(Call):
    """Prompts to complete; choice k of prompt p has the index `p * n + k`."""

    n: int = 1
    """Outputs to return of each prompt; the asks may have more, to choose from."""
    echo: bool = False
    logprobs: int | None = None
    """Alternatives to report for each token."""
    shows_prompt_logprobs: bool = False
    is_scoring: bool = False
    """Nothing was to be generated: the one token that the engine makes is not shown."""

    @property
    def is_choice(self) -> bool:
        """Whether there will be more outputs than are returned."""
        return self.asks[0].params.n > self.n


def parse_completion(body: bytes, wire: Wire) -> CompletionCall:
    """Raises ApiError, with the field, for a body that cannot be served."""
    request = decode(body, _decoder)
    check_model(request.model, wire)
    check_stream(request)
    n = request.n or 1
    num_candidates = request.best_of or n
    if num_candidates < n:
        raise bad_request(f"`best_of` must be at least `n`, got {num_candidates} with n {n}.", "best_of")
    if request.stream and num_candidates > n:
        raise only_whole("best_of")
    if request.stream and request.echo and request.logprobs is not None:
        raise only_whole("echo")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    params = sampling_params(
        request,
        wire,
        n=num_candidates,
        max_tokens=max_tokens or 1,
        # the best are found by their log probabilities
        logprobs=_most(request.logprobs, 0 if num_candidates > n else None),
        prompt_logprobs=_most(request.prompt_logprobs, request.logprobs if request.echo else None),
    )
    prompts = prompts_of(request.prompt, "prompt", wire)
    if len(prompts) * num_candidates > MAX_OUTPUTS:
        text = f"{len(prompts)} prompts with {num_candidates} outputs each are more than the {MAX_OUTPUTS} of one call"
        raise bad_request(f"{text}; send several calls.", "n")
    asks = tuple(
        Ask(params=params, prompt=prompt, add_special=request.add_special_tokens is not False) for prompt in prompts
    )
    return CompletionCall(
        asks=asks,
        model=request.model,
        stream=bool(request.stream),
        include_usage=includes_usage(request),
        priority=request.priority or 0,
        deadline_seconds=request.deadline,
        n=n,
        echo=bool(request.echo),
        logprobs=request.logprobs,
        shows_prompt_logprobs=request.prompt_logprobs is not None,
        is_scoring=max_tokens == 0,
    )


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)
