"""What a caller of the Python API gets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..engine.sequence import Timing as Clocked


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. TTFT covers queueing, prefill and the first token; total = ttft + (tokens - 1) * tpot."""

    queue: float
    """From arrival to the first step."""
    ttft: float
    """From arrival to the first token."""
    tpot: float
    """Per token after the first; NaN where there is only one."""
    total: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    token: str
    """Its text; U+FFFD where it is part of a character."""
    logprob: float
    token_bytes: bytes | None = None
    """What it stands for, to the byte, where that is known."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Natural log probabilities at one position, of the model's own law before any sampling option."""

    chosen: TokenLogprob
    rank: int
    """1 if the chosen token was the most likely."""
    top: tuple[TokenLogprob, ...]
    """The most likely tokens, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` outputs of a prompt."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    """stop, length, abort or error."""
    logprobs: tuple[PositionLogprobs, ...] | None
    timing: Timing
    error: str = ""
    """One sentence where the finish reason is error."""


@dataclass(frozen=True, slots=True)
class Result:
    """One prompt with its outputs. The properties speak of the first, which is the only one unless n > 1."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    plan_hash: str
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """One entry a prompt token; the first has none."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed again."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[PositionLogprobs, ...] | None:
        return self.choices[0].logprobs

    @property
    def timing(self) -> Timing:
        return self.choices[0].timing

    @property
    def error(self) -> str:
        return next((choice.error for choice in self.choices if choice.error), "")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed output."""

    index: int
    """Which of the `n` outputs."""
    text: str
    token_ids: tuple[int, ...]
    """Tokens since the last chunk; their text may come later, when it is certain."""
    finish_reason: str | None = None
    result: Result | None = None
    """The whole result, with the last chunk of the last output."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    """One entry for each of `token_ids`, if the request asked."""


def timing_of(clocked: Clocked, num_tokens: int) -> Timing:
    """Durations from the engine's clock readings."""
    steady = clocked.finished - clocked.first_token
    return Timing(
        queue=clocked.scheduled - clocked.arrival,
        ttft=clocked.first_token - clocked.arrival,
        tpot=steady / (num_tokens - 1) if num_tokens > 1 else math.nan,
        total=clocked.finished - clocked.arrival,
    )
