"""What a step brought each sequence: its new tokens, cut where the output ends, with the scores it asked for."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np

from ..records import NO_ROWS, Draft, FloatArray, IntArray, StepOutput, TokenScores
from .batching import pooled_range, scored_range
from .driver import Chosen
from .emission import FinishReason
from .sequence import Sequence
from .stopping import cut
from .verify import Verified


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sequence after one step, before anything of it is changed."""

    sequence: Sequence
    num_computed: int
    """Tokens computed and accepted in this step."""
    token_ids: IntArray = field(default_factory=lambda: NO_ROWS)
    scores: TokenScores | None = None
    prompt_scores: TokenScores | None = None
    reason: FinishReason | None = None
    stop_token: int | None = None
    error: str = ""
    hidden: FloatArray | None = None
    """`[E]` what the step adds to the vector that the sequence is for."""
    num_pooled: int = 0
    """Prompt tokens in it."""


def outcomes(
    chosen: Rows[Chosen],
    sampling: IntArray,
    starts: IntArray,
    verified: Verified,
    output: StepOutput,
    max_model_len: int,
) -> list[Outcome]:
    """One outcome for each of `chosen`.

    sampling: which of them sampled; starts: the first entry of each of those; output: what the step came back with.
    """
    place = {int(index): entry for entry, index in enumerate(sampling)}
    scores, pools = output.scores, iter(() if output.pooled is None else output.pooled.double().cpu().numpy())
    results, start = [], 0
    for index, wish in enumerate(chosen):
        first, end = scored_range(wish)
        num_scored = max(0, end - first)
        prompt_scores = part_of(scores, start, start + num_scored) if scores is not None and num_scored else None
        start += num_scored
        if index in place:
            results.append(sampled_outcome(wish, verified, place[index], starts, prompt_scores, max_model_len))
        elif wish.sequence.pooling:
            results.append(pooled_outcome(wish, pools))
        else:
            results.append(Outcome(wish.sequence, wish.num_tokens, prompt_scores=prompt_scores))
    return results


def most_likely_outcomes(
    chosen: Rows[Chosen], sampling: IntArray, tokens: IntArray, max_model_len: int
) -> list[Outcome]:
    """The same where nothing was drafted, scored or pooled. tokens: `[L]`, one for each row of `sampling`."""
    ends, values = iter(sampling.tolist()), tokens.tolist()
    next_sampling, entry = next(ends, None), 0
    results: list[Outcome] = []
    for index, wish in enumerate(chosen):
        if index != next_sampling:
            results.append(Outcome(wish.sequence, wish.num_tokens))
            continue
        sequence, token_ids = wish.sequence, tokens[entry : entry + 1]
        room = min(sequence.params.max_tokens, max_model_len - sequence.num_prompt) - sequence.num_output
        if room > 1 and values[entry] not in sequence.stops:
            # most tokens end nothing
            results.append(Outcome(sequence, wish.num_tokens, token_ids))
        else:
            end = cut(
                values[entry : entry + 1],
                num_prompt=sequence.num_prompt,
                num_output=sequence.num_output,
                params=sequence.params,
                stops=sequence.stops,
                max_model_len=max_model_len,
            )
            results.append(Outcome(sequence, wish.num_tokens, token_ids, reason=end.reason, stop_token=end.stop_token))
        next_sampling, entry = next(ends, None), entry + 1
    return results


def pooled_outcome(wish: Chosen, pools: Iterator[FloatArray]) -> Outcome:
    """Of a row that becomes a vector: done with the last token of its prompt."""
    first, end = pooled_range(wish)
    hidden = next(pools) if end > first else None
    reason: FinishReason | None = "stop" if wish.is_last_chunk else None
    return Outcome(wish.sequence, wish.num_tokens, hidden=hidden, num_pooled=max(0, end - first), reason=reason)


def sampled_outcome(
    wish: Chosen,
    verified: Verified,
    entry: int,
    starts: IntArray,
    prompt_scores: TokenScores | None,
    max_model_len: int,
) -> Outcome:
    sequence = wish.sequence
    if entry in verified.errors:
        return Outcome(sequence, wish.num_tokens, reason="error", error=verified.errors[entry])
    num_accepted = int(verified.num_accepted[entry])
    token_ids = verified.tokens[entry, : num_accepted + 1]
    end = cut(
        token_ids.tolist(),
        num_prompt=sequence.num_prompt,
        num_output=sequence.num_output,
        params=sequence.params,
        stops=sequence.stops,
        max_model_len=max_model_len,
    )
    # the last token kept has no KV yet, so at most one less than that is computed
    num_computed = wish.num_tokens + min(num_accepted, end.num_tokens - 1)
    scores = emitted_scores(verified, int(starts[entry]), end.num_tokens)
    token_ids = token_ids[: end.num_tokens]
    return Outcome(sequence, num_computed, token_ids, scores, prompt_scores, end.reason, end.stop_token)


def emitted_scores(verified: Verified, first: int, num_tokens: int) -> TokenScores | None:
    """The scores of `num_tokens` emitted tokens from entry `first` on, if the row asked for any."""
    if verified.scores is None:
        return None
    at = np.searchsorted(verified.scores.entries, first)
    if at == len(verified.scores.entries) or verified.scores.entries[at] != first:
        return None
    return part_of(verified.scores.values, int(at), int(at) + num_tokens)


def part_of(scores: TokenScores, start: int, end: int) -> TokenScores:
    return TokenScores(
        scores.logprobs[start:end], scores.ranks[start:end], scores.top_ids[start:end], scores.top_logprobs[start:end]
    )


def draft_of(draft: Draft, rows: IntArray) -> Draft:
    """The drafts of some rows of the batch."""
    probs = None if draft.probs is None else draft.probs[rows]
    return Draft(draft.tokens[rows], draft.lens[rows], probs)
