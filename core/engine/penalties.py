"""Repetition, presence and frequency penalties over the tokens a row has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..records import FloatArray, IntArray


class TokenCounts:
    """The distinct tokens of one row and how often each is in its output; follows the row as it grows."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._place: dict[int, int] = {}
        self._ids: IntArray = np.empty(0, dtype=np.int64)
        self._counts: IntArray = np.empty(0, dtype=np.int64)

    def follow(self, tokens: IntArray, num_prompt: int) -> None:
        """Take in what the row has learnt since the last call. tokens: all of them, the prompt first."""
        if self._num_seen < num_prompt:
            self._ids = np.unique(tokens[:num_prompt])
            self._counts = np.zeros(len(self._ids), dtype=np.int64)
            self._place = {token: place for place, token in enumerate(self._ids.tolist())}
            self._num_seen = num_prompt
        self._ids, self._counts = self._with(tokens[self._num_seen :], self._place)
        self._num_seen = len(tokens)

    def after(self, drafts: IntArray) -> tuple[IntArray, IntArray]:
        """Distinct tokens and their counts in the output, if `drafts` were accepted."""
        return self._with(drafts, dict(self._place)) if len(drafts) else (self._ids, self._counts)

    def _with(self, tokens: IntArray, place: dict[int, int]) -> tuple[IntArray, IntArray]:
        """The arrays with `tokens` counted as output; `place` learns the new ones."""
        num_known = len(place)
        places = np.array([place.setdefault(token, len(place)) for token in tokens.tolist()], dtype=np.int64)
        new = np.zeros(len(place) - num_known, dtype=np.int64)
        ids, counts = np.concatenate([self._ids, new]), np.concatenate([self._counts, new])
        ids[places] = tokens
        np.add.at(counts, places, 1)
        return ids, counts


def penalise(
    logits: torch.Tensor,
    entries: IntArray,
    seen: Sequence[tuple[IntArray, IntArray]],
    repetition: FloatArray,
    presence: FloatArray,
    frequency: FloatArray,
) -> None:
    """Change `logits` `[L, V]` in place at some entries.

    entries, and `[P]` with it: seen (distinct tokens, counts in the output) and the three penalties. Repetition divides
    positive and multiplies negative logits of every seen token (Keskar et al. 2019); presence and frequency are
    OpenAI's: logit - count * frequency - (count > 0) * presence.
    """
    sizes = [len(ids) for ids, _ in seen]

    def on_device(array: IntArray | FloatArray) -> torch.Tensor:
        return torch.from_numpy(array).to(logits.device)

    def spread(values: FloatArray) -> torch.Tensor:
        return on_device(np.repeat(values, sizes)).to(logits.dtype)

    at = on_device(np.repeat(entries, sizes)), on_device(np.concatenate([ids for ids, _ in seen]))
    counts = on_device(np.concatenate([counts for _, counts in seen])).to(logits.dtype)
    factor = spread(repetition)
    value = logits[at]
    value = torch.where(value > 0, value / factor, value * factor)
    logits[at] = value - counts * spread(frequency) - (counts > 0) * spread(presence)
