"""The sampling options of every row, in one array with a record a row, so that a step gathers them by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..records import FloatArray, IntArray
from ..sampling_params import SamplingParams
from .penalties import TokenCounts

KnownTokens = Callable[[], tuple[IntArray, int]]
"""All tokens of a row that are known now, the prompt first, and how many of them are the prompt."""

_OPTIONS = np.dtype(
    [
        ("seed", np.int64),
        ("child", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("repetition", np.float64),
        ("presence", np.float64),
        ("frequency", np.float64),
        ("has_penalty", np.bool_),
        ("has_bias", np.bool_),
        ("min_tokens", np.int64),
        ("logprobs", np.int64),
    ],
    align=True,
)
Options = npt.NDArray[np.void]
"""`[L]` records with the fields of `_OPTIONS`; `top_k` 0 and `logprobs` -1 are off."""


@dataclass(frozen=True, slots=True)
class RowState:
    """What a row has that is not one number."""

    slot: int
    tokens: KnownTokens
    biased: IntArray
    biases: FloatArray
    stops: IntArray
    counts: TokenCounts = field(default_factory=TokenCounts)


class RowOptions:
    """Options and state by row. Slots of removed rows are used again."""

    def __init__(self) -> None:
        self._states: dict[int, RowState] = {}
        self._table: Options = np.zeros(16, dtype=_OPTIONS)
        self._free = list(range(len(self._table)))

    def add(
        self, row: int, params: SamplingParams, seed: int, child: int, tokens: KnownTokens, stops: frozenset[int]
    ) -> None:
        if not self._free:
            self._free = list(range(len(self._table), 2 * len(self._table)))
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        slot = self._free.pop()
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self._table[slot] = (
            seed,
            child,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            *penalties,
            penalties != (1.0, 0.0, 0.0),
            len(params.logit_bias) > 0,
            params.min_tokens,
            -1 if params.logprobs is None else params.logprobs,
        )
        self._states[row] = RowState(
            slot,
            tokens,
            biased=np.array(list(params.logit_bias), dtype=np.int64),
            biases=np.array(list(params.logit_bias.values()), dtype=np.float64),
            stops=np.array(sorted(stops), dtype=np.int64),
        )

    def remove(self, row: int) -> None:
        self._free.append(self._states.pop(row).slot)

    @property
    def rows(self) -> frozenset[int]:
        return frozenset(self._states)

    def states(self, rows: IntArray) -> list[RowState]:
        return [self._states[row] for row in rows.tolist()]

    def of(self, states: Sequence[RowState]) -> Options:
        return self._table[np.array([state.slot for state in states], dtype=np.int64)]
