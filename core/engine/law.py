"""Token laws as integer weights, so that sums are exact and a token never depends on the order of a reduction.

A float cumulative sum depends on how the device splits it, which may depend on the batch. Integers do not: for one row
of logits the drawn token is the same alone, in any batch and on any path through the filters below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..model import ops
from ..records import FloatArray, IntArray

NUM_CANDIDATES = 512
"""Most likely tokens that top-k and top-p look at first; rows that need more look at 16 times as many, then all."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What to keep of each law; one value per row, `[L]`."""

    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray

    @property
    def active(self) -> IntArray:
        """The rows that have any filter."""
        return np.flatnonzero((self.top_k > 0) | (self.top_p < 1.0) | (self.min_p > 0.0))

    def at(self, index: IntArray) -> Filters:
        return Filters(self.top_k[index], self.top_p[index], self.min_p[index])


@dataclass(frozen=True, slots=True)
class Laws:
    """The laws of some entries of a step."""

    entries: IntArray
    """`[P]` ascending."""
    weights: torch.Tensor
    """`[P, V]` int64, proportional to the probabilities."""

    def probs(self, places: IntArray) -> torch.Tensor:
        """`[N, V]` float64, the laws at some of the `[P]` places."""
        weights = self.weights[torch.from_numpy(places).to(self.weights.device)]
        return weights / weights.sum(-1, keepdim=True).double()

    def probs_of(self, places: IntArray, tokens: IntArray) -> FloatArray:
        """`[N]` the probability of one token at each place."""
        at = torch.from_numpy(places).to(self.weights.device)
        chosen = self.weights[at, torch.from_numpy(tokens).to(self.weights.device)]
        return np.asarray((chosen / self.weights.sum(-1)[at].double()).cpu().numpy(), dtype=np.float64)


def scale_bits(vocab_size: int) -> int:
    """The weight of the most likely token is 2**this: as large as a sum over the vocabulary in int64 allows."""
    return 62 - (vocab_size - 1).bit_length()


def weights_of(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """softmax(logits / temperature), scaled and cut to integers: `[L, V]` int64 from `[L, V]` and `[L]`.

    Probabilities under 2**-44 (at V = 2**18) of the largest become 0. Taking the maximum off before the division keeps
    any temperature from overflowing.
    """
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(temperature[:, None])
    return scaled.exp_().mul_(2.0 ** scale_bits(logits.shape[-1])).to(torch.int64)


def weights_from(values: torch.Tensor) -> torch.Tensor:
    """The same from unnormalised probabilities `[L, V]` float64, of which no row is all 0."""
    return (values / values.amax(-1, keepdim=True)).mul_(2.0 ** scale_bits(values.shape[-1])).to(torch.int64)


def filtered(
    weights: torch.Tensor,
    filters: Filters,
    num_candidates: int = NUM_CANDIDATES,
    top_k: ops.TopK = ops.top_k,
) -> torch.Tensor:
    """Set to 0, in place, what top_k, then top_p of what is left, and min_p exclude; returns `weights`.

    A token as likely as the last one kept is kept too, so that no order among equals matters. `num_candidates` and
    `top_k`, a form of the operation, change the time it takes, never the result.
    """
    index = filters.active
    if not len(index):
        return weights
    if len(index) < len(weights):
        where = torch.from_numpy(index).to(weights.device)
        weights[where] = filtered(weights[where], filters.at(index), num_candidates, top_k)
        return weights

    floors = np.ceil(filters.min_p * 2.0 ** scale_bits(weights.shape[-1])).astype(np.int64)
    floor = torch.from_numpy(floors).to(weights.device)
    if (filters.top_k > 0).any() or (filters.top_p < 1.0).any():
        floor = torch.maximum(floor, _floors(weights, filters, num_candidates, top_k))
    return weights.masked_fill_(weights < floor[:, None], 0)


def _floors(weights: torch.Tensor, filters: Filters, num_candidates: int, top_k_of: ops.TopK) -> torch.Tensor:
    """`[L]` the smallest weight that top_k and top_p keep; exact, however few candidates it takes to know."""
    vocab_size = weights.shape[-1]
    if num_candidates < vocab_size:
        best, _ = top_k_of(weights, num_candidates)
    else:
        best = weights.sort(dim=-1, descending=True).values
    top_k = torch.from_numpy(np.where(filters.top_k > 0, filters.top_k, vocab_size)).to(weights.device)
    top_p = torch.from_numpy(filters.top_p).to(weights.device)

    k_floor = best.gather(1, (top_k - 1).clamp(max=best.shape[1] - 1)[:, None])[:, 0]
    has_k, has_p = top_k < vocab_size, top_p < 1.0
    best = best.masked_fill((best < k_floor[:, None]) & has_k[:, None], 0)
    reach = best.cumsum(-1)
    total = torch.where(has_k, reach[:, -1], weights.sum(-1))
    goal = torch.minimum((total * top_p).ceil().to(torch.int64), total)
    last = (reach < goal[:, None]).sum(-1, keepdim=True).clamp(max=best.shape[1] - 1)
    p_floor = best.gather(1, last)[:, 0]
    floor = torch.where(has_p, p_floor, torch.where(has_k, k_floor, 0))

    if best.shape[1] < vocab_size:
        cut_off = torch.where(has_k, best[:, -1] > 0, reach[:, -1] < goal)
        undecided = torch.where(has_p, cut_off, has_k & (top_k > best.shape[1]))
        index = np.flatnonzero(undecided.cpu().numpy())
        if len(index):
            where = torch.from_numpy(index).to(weights.device)
            floor[where] = _floors(weights[where], filters.at(index), 16 * num_candidates, top_k_of)
    return floor


def draw(weights: torch.Tensor, uniforms: FloatArray) -> torch.Tensor:
    """`[L]` one token a row by inverse CDF in the order of token ids; never one of weight 0."""
    reach = weights.cumsum(-1)
    total = reach[:, -1:]
    noise = torch.from_numpy(uniforms).to(weights.device)[:, None]
    # noise is at most 1 - 2**-53, so the product is below the total however it is rounded
    target = (noise * total).to(torch.int64)
    return torch.searchsorted(reach, target, right=True)[:, 0]
