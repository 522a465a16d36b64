"""What the engine says about a sequence after a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ..records import TokenScores
from .sequence import Sequence, Timing

if TYPE_CHECKING:
    from .outcome import Outcome

FinishReason = Literal["stop", "length", "abort", "error"]
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Emission:
    """New tokens of one sequence, and how it ended if it did. Exactly one emission of a sequence has a reason."""

    request: str
    child: int
    token_ids: tuple[int, ...]
    scores: TokenScores | None = None
    """One entry for each of `token_ids`, if the request asked."""
    prompt_scores: TokenScores | None = None
    """For the prompt tokens scored in this step, in order; the first prompt token has none."""
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The token that ended the output, the last of `token_ids`; it is no part of the text."""
    error: str = ""
    timing: Timing | None = None
    """With the finish reason."""
    pooled: Vector | None = None
    """`[E]` float32, the pooled prompt of a request that asked for that, with its finish reason."""
    num_cached: int = 0
    """Prompt tokens that were not computed again."""
    num_preemptions: int = 0


def emission_of(
    sequence: Sequence, result: Outcome | None, reason: FinishReason | None = None, error: str = ""
) -> Emission:
    """What to say of a sequence after a step that brought it `result`."""
    return Emission(
        request=sequence.request,
        child=sequence.child,
        token_ids=tuple(result.token_ids.tolist()) if result else (),
        scores=result.scores if result else None,
        prompt_scores=result.prompt_scores if result else None,
        finish_reason=reason,
        stop_token=result.stop_token if result else None,
        error=error,
        timing=replace(sequence.timing) if reason else None,
        pooled=vector_of(sequence) if reason == "stop" and sequence.pooling else None,
        num_cached=sequence.num_cached,
        num_preemptions=sequence.num_preemptions,
    )


def vector_of(sequence: Sequence) -> Vector:
    """The mean of the hidden states that were summed."""
    assert sequence.pooled is not None, "the prompt is computed"
    return (sequence.pooled / sequence.num_pooled).astype(np.float32)
