"""Are two greedy outputs the same? Token for token, or different only where the reference itself was undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MARGIN = 1e-4
"""Largest gap between the reference's top two logits, in float32, that excuses a different token."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against the reference, teacher-forced: the reference read the output itself."""

    num_tokens: int
    num_undecided: int
    """Positions where the output took the runner-up and the reference's margin was below the bound."""
    problem: str = ""
    """The first position that nothing excuses; empty if there is none."""


def compare_greedy(logits: torch.Tensor, token_ids: Sequence[int], margin: float = MARGIN) -> Comparison:
    """logits: `[N, V]` of the reference at the positions that predict `token_ids` `[N]`, given the ones before.

    By induction the reference would have generated the same tokens wherever its best token is the output's.
    """
    best = logits.topk(2, dim=-1)
    num_undecided = 0
    for position, token in enumerate(token_ids):
        first, second = best.indices[position].tolist()
        if token == first:
            continue
        gap = float(best.values[position, 0] - logits[position, token])
        if gap >= margin:
            text = f"position {position}: token {token}, the reference has {first} (then {second}), ahead by {gap:.3g}"
            return Comparison(len(token_ids), num_undecided, text)
        num_undecided += 1
    return Comparison(len(token_ids), num_undecided)
