"""Verification of drafts: which draft tokens stand, and the one token that follows them.

Deterministic drafts (no `probs`) are compared with what the target samples at each position with that position's own
noise. So the output has the target's exact law and is, token for token, what the engine emits without speculation.

Drafts with `probs` are drawn tokens: each is accepted with probability min(1, p / q), and the first rejected one is
replaced by a draw from max(p - q, 0), normalised (Leviathan et al. 2023, 2211.17192). The law is the target's, but the
tokens are not those without speculation. p is the target's law after penalties and filters. Greedy rows always compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..records import BoolArray, Draft, IntArray
from . import noise
from .law import Laws, draw, weights_from
from .sampler import Sampled, Sampler, Scores


@dataclass(frozen=True, slots=True)
class Entries:
    """The rows of logits that a step samples from: for each row of the batch one per draft token, and one more."""

    draft: Draft
    owner: IntArray
    """`[L]` index into the batch."""
    rows: IntArray
    """`[L]`"""
    offsets: IntArray
    """`[L]` draft tokens before the entry."""
    prefixes: tuple[IntArray, ...]
    """`[L]` the owner's draft."""
    starts: IntArray
    """`[B]` the first entry of each row; the entry after j draft tokens is `starts[b] + j`."""

    @classmethod
    def of(cls, rows: IntArray, draft: Draft) -> Entries:
        """rows: `[B]`, as the draft has them."""
        sizes = draft.lens + 1
        starts = np.cumsum(sizes) - sizes
        owner = np.repeat(np.arange(len(rows)), sizes)
        drafts = [tokens[:size] for tokens, size in zip(draft.tokens, draft.lens.tolist(), strict=True)]
        prefixes = tuple(drafts[index] for index in owner.tolist())
        return cls(draft, owner, rows[owner], np.arange(len(owner)) - starts[owner], prefixes, starts)


@dataclass(frozen=True, slots=True)
class Verified:
    """What each row of the batch emits."""

    tokens: IntArray
    """`[B, k + 1]` accepted draft tokens and one more, then -1."""
    num_accepted: IntArray
    """`[B]` draft tokens that stand; the row emits one token more, or none where there is an error."""
    scores: Scores | None
    """Of the emitted tokens, by entry."""
    errors: Mapping[int, str]
    """By index into the batch: one sentence. The other rows are not concerned."""


def no_draft(num_rows: int) -> Draft:
    return Draft(np.empty((num_rows, 0), dtype=np.int64), np.zeros(num_rows, dtype=np.int64))


def fitted(draft: Draft, num_drafts: IntArray, vocab_size: int) -> Draft:
    """The draft within the `[B]` allowance, each row cut at its first token that the target does not have.

    Raises ValueError where the shapes do not fit, or for a tree.
    """
    num_rows, width = len(num_drafts), draft.tokens.shape[-1]
    if draft.tokens.shape != (num_rows, width) or draft.lens.shape != (num_rows,):
        raise ValueError(f"the draft must have tokens [{num_rows}, k] and lens [{num_rows}]")
    if draft.probs is not None and draft.probs.shape != (num_rows, width, vocab_size):
        raise ValueError(
            f"the draft's probs must be [{num_rows}, {width}, {vocab_size}], are {list(draft.probs.shape)}"
        )
    if draft.parents is not None:
        raise ValueError("the draft is a tree, which the attention in use cannot verify")
    known = (draft.tokens >= 0) & (draft.tokens < vocab_size) & (np.arange(width) < draft.lens[:, None])
    lens = np.minimum(_leading(known), num_drafts)
    width = int(lens.max(initial=0))
    return Draft(draft.tokens[:, :width], lens, None if draft.probs is None else draft.probs[:, :width])


def verify(sampler: Sampler, logits: torch.Tensor, entries: Entries, allowed: torch.Tensor | None = None) -> Verified:
    """Decide what each row emits. logits: `[L, V]` of the entries; allowed: `[L, V]` bool, or None for all."""
    draft = entries.draft
    keep_laws = draft.probs is not None
    sampled = sampler.sample(logits, entries.rows, entries.offsets, entries.prefixes, allowed, keep_laws)
    width = draft.tokens.shape[1]
    columns, batch = np.arange(width + 1), np.arange(len(draft.lens))
    at = entries.starts[:, None] + np.minimum(columns, draft.lens[:, None])
    chosen = sampled.token_ids[at]

    accepted = chosen[:, :width] == draft.tokens
    if draft.probs is not None and sampled.laws is not None:
        _accept_by_ratio(accepted, entries, sampled, sampled.laws, draft.probs)
    accepted &= (columns[:width] < draft.lens[:, None]) & (chosen[:, :width] >= 0)
    num_accepted = _leading(accepted)
    last = chosen[batch, num_accepted]
    if draft.probs is not None and sampled.laws is not None:
        _replace_rejected(last, num_accepted, entries, sampled, sampled.laws, draft.probs)

    drafted = np.pad(draft.tokens, ((0, 0), (0, 1)))
    tokens = np.where(columns < num_accepted[:, None], drafted, -1)
    tokens[batch, num_accepted] = last
    failed = np.flatnonzero(last < 0)
    tokens[failed] = -1
    errors = {index: sampled.errors[int(at[index, num_accepted[index]])] for index in failed.tolist()}
    emitted = np.where(entries.offsets <= num_accepted[entries.owner], tokens[entries.owner, entries.offsets], -1)
    return Verified(tokens, num_accepted, sampler.score(logits, entries.rows, emitted), errors)


def _leading(flags: BoolArray) -> IntArray:
    """`[B]` how many flags of `[B, k]` are set before the first that is not."""
    leading: BoolArray = np.logical_and.accumulate(flags, axis=1)
    return np.asarray(leading.sum(axis=1), dtype=np.int64)


def _accept_by_ratio(accepted: BoolArray, entries: Entries, sampled: Sampled, laws: Laws, probs: torch.Tensor) -> None:
    """Decide `accepted` `[B, k]` anew wherever a draft token stands in a row that is not greedy."""
    places = np.flatnonzero(entries.offsets[laws.entries] < entries.draft.lens[entries.owner[laws.entries]])
    at = laws.entries[places]
    rows, columns = entries.owner[at], entries.offsets[at]
    tokens = entries.draft.tokens[rows, columns]
    target = laws.probs_of(places, tokens)
    own, total = probs[rows, columns, tokens].double(), probs.sum(-1, dtype=torch.float64)[rows, columns]
    draft = torch.where(own > 0, own / total, 0).cpu().numpy()
    accepted[rows, columns] = (draft > 0) & (sampled.uniform(at, noise.ACCEPT) * draft < target)


def _replace_rejected(
    last: IntArray, num_accepted: IntArray, entries: Entries, sampled: Sampled, laws: Laws, probs: torch.Tensor
) -> None:
    """Draw `last` `[B]` from the residual law where a draft token of a row that is not greedy was rejected."""
    final = entries.starts + num_accepted
    rows = np.flatnonzero((num_accepted < entries.draft.lens) & (last >= 0) & np.isin(final, laws.entries))
    if not len(rows):
        return
    places = np.searchsorted(laws.entries, final[rows])
    target = laws.probs(places)
    draft = probs[rows, num_accepted[rows]].to(target).nan_to_num().clamp(min=0)
    residual = (target - draft / draft.sum(-1, keepdim=True)).nan_to_num().clamp(min=0)
    # Nothing is left when the proposer's law is not a law; the target's own is then the only choice.
    residual = torch.where(residual.amax(-1, keepdim=True) > 0, residual, target)
    tokens = draw(weights_from(residual), sampled.uniform(final[rows], noise.RESIDUAL))
    last[rows] = tokens.cpu().numpy()
