"""One sequence: a prompt and what is generated after it. The engine's own, mutable, never shown to a plugin."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ..records import FloatArray, IntArray, Pooling
from ..sampling_params import SamplingParams


class State(Enum):
    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    FINISHED = "finished"


class IntBuffer:
    """Integers that grow at the end: token ids, block tables. The view of them is one slice, never a copy."""

    def __init__(self, values: IntArray) -> None:
        self._array = np.concatenate([values, np.empty(64, dtype=np.int64)])
        self.length = len(values)

    def __len__(self) -> int:
        return self.length

    @property
    def view(self) -> IntArray:
        """Read-only, since it is what plugins see."""
        view = self._array[: self.length]
        view.setflags(write=False)
        return view

    def replace(self, old: int, new: int) -> None:
        """Put `new` wherever `old` stands."""
        values = self._array[: self.length]
        values[values == old] = new

    def extend(self, values: IntArray | tuple[int, ...]) -> None:
        end = self.length + len(values)
        if end > len(self._array):
            self._array = np.concatenate([self.view, np.empty(end, dtype=np.int64)])
        self._array[self.length : end] = values
        self.length = end


@dataclass(slots=True)
class Timing:
    """Seconds on the engine's clock; NaN until it happened."""

    arrival: float
    scheduled: float = math.nan
    first_token: float = math.nan
    finished: float = math.nan


@dataclass(slots=True, eq=False)
class Sequence:
    row: int
    request: str
    child: int
    params: SamplingParams
    seed: int
    tokens: IntBuffer
    num_prompt: int
    timing: Timing
    tenant: str = ""
    priority: int = 0
    is_aborted: bool = False
    """Aborted while its step was in flight: it leaves when the step returns."""
    state: State = State.WAITING
    ticket: str = ""
    """What it is or was held for."""
    num_computed: int = 0
    """Tokens whose KV is in the cache, computed and accepted."""
    num_in_flight: int = 0
    num_overtaken: int = 0
    """Later arrivals that were admitted while this one waited."""
    pooling: Pooling = ""
    """How the prompt's hidden states become one vector; such a sequence samples nothing."""
    num_pooled: int = 0
    """Prompt tokens whose hidden states are in `pooled`."""
    pooled: FloatArray | None = None
    """`[E]` sum so far."""
    num_scored: int = 0
    """Prompt positions whose log probability was reported."""
    num_cached: int = 0
    """Prompt tokens that a prefix hit saved."""
    num_expected: int = 0
    """Tokens that a prefix hit will save, while it waits."""
    num_preemptions: int = 0
    tables: tuple[IntBuffer, ...] = ()
    """Per KV group, its blocks in order."""
    num_trimmed: tuple[int, ...] = ()
    """Per KV group, the leading blocks that it no longer holds; empty before any was given back."""
    keys: list[bytes] = field(default_factory=list)
    root_key: bytes = b""
    stops: frozenset[int] = frozenset()

    @property
    def num_tokens(self) -> int:
        return self.tokens.length

    @property
    def num_output(self) -> int:
        return self.tokens.length - self.num_prompt

    @property
    def num_pending(self) -> int:
        return self.tokens.length - self.num_computed - self.num_in_flight - self.num_expected

    @property
    def is_alive(self) -> bool:
        return self.state is not State.FINISHED

    @property
    def is_scored(self) -> bool:
        """The log probability of each prompt token is asked for."""
        return self.params.prompt_logprobs is not None and self.child == 0

    @property
    def needs_whole_prompt(self) -> bool:
        """What is asked for comes out of every prompt token, so none may be taken from a cache."""
        return self.is_scored or self.pooling == "mean"
