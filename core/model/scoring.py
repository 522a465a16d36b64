"""What is asked of many positions at once, without ever holding logits for all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..records import IntArray, TokenScores
from . import ops

CHUNK = 128
"""Positions whose logits exist at once: 25 MB of float32 at a vocabulary of 49,152."""


def score_positions(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    positions: IntArray,
    targets: IntArray,
    num_top: int,
    top_k: ops.TopK = ops.top_k,
) -> TokenScores:
    """Score the token `targets[i]` that follows position `positions[i]` of hidden `[T, E]`."""
    parts = []
    for start in range(0, len(positions), CHUNK):
        chunk = slice(start, start + CHUNK)
        at, following = (torch.from_numpy(each[chunk]).to(hidden.device) for each in (positions, targets))
        parts.append(score_tokens(logits_of(hidden[at]), following, num_top, top_k))
    return TokenScores(
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
    )


def score_tokens(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, top_k: ops.TopK = ops.top_k
) -> TokenScores:
    """Log probability and rank of one token a row, and the `num_top` best: logits `[P, V]`, token_ids `[P]`."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, token_ids.unsqueeze(-1))
    ranks = (logprobs > chosen).sum(-1) + 1
    # the operation is for one and more
    top_logprobs, top_ids = top_k(logprobs, num_top) if num_top else (logprobs[:, :0], ranks.new_empty(len(ranks), 0))
    return TokenScores(
        logprobs=chosen.squeeze(-1).double().cpu().numpy(),
        ranks=ranks.cpu().numpy(),
        top_ids=top_ids.cpu().numpy(),
        top_logprobs=top_logprobs.double().cpu().numpy(),
    )


def sum_ranges(hidden: torch.Tensor, ranges: IntArray) -> torch.Tensor:
    """`[P, E]` sums of hidden `[T, E]` over the ranges `[P, 2]`, in float32 at least."""
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return torch.stack([wide[first:end].sum(0) for first, end in ranges.tolist()])
