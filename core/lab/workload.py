"""What is asked of an engine in a measurement: prompts, lengths and the moments at which they come, all seeded.

A workload is made before anything is measured and never changes, so that every arm gets the same one. How requests come
about (fixed lengths, files, traces, arrivals) is in `workloads.py`, `traces.py` and `arrivals.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..records import IntArray

ALONE = -1
"""Stands for the conversation of a request that belongs to none."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of random token ids: equal wherever key and length are, so that prompts can share a beginning."""

    key: int
    num_tokens: int

    def token_ids(self, first_id: int, end_id: int) -> IntArray:
        """`[num_tokens]` ids from `first_id` on and below `end_id`."""
        generator = np.random.default_rng([self.key, self.num_tokens])
        return generator.integers(first_id, end_id, self.num_tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Its prompt is either segments of token ids or a text."""

    arrival: float
    """Seconds after the start; in a closed loop 0, since a client asks when its last answer has come."""
    num_output: int
    """Tokens to generate, at most if `ignore_eos` is False."""
    segments: tuple[Segment, ...] = ()
    text: str = ""
    conversation: int = ALONE
    """Asks of one conversation are sent one after another, each after all that was said before it."""
    ignore_eos: bool = True
    """The end of text ends nothing, so that every arm generates as many tokens."""

    @property
    def num_prompt(self) -> int:
        """Tokens of its own segments; 0 of a text, whose tokens are counted by who reads it."""
        return sum(segment.num_tokens for segment in self.segments)

    def token_ids(self, first_id: int, end_id: int) -> IntArray:
        """`[num_prompt]` its segments, one after the other."""
        return np.concatenate([segment.token_ids(first_id, end_id) for segment in self.segments])


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival."""

    name: str
    asks: tuple[Ask, ...]
    num_clients: int | None = None
    """A closed loop: so many clients, each of which asks again when it has its answer. None: open, by arrival."""
    seed: int = 0
    about: Mapping[str, str | int | float] = field(default_factory=dict)
    """How it was made, in options: what to repeat to get it again."""

    @property
    def fingerprint(self) -> str:
        """The same for the same requests, whatever made them."""
        digest = hashlib.sha256(repr(self.num_clients).encode())
        for ask in self.asks:
            segments = tuple((segment.key, segment.num_tokens) for segment in ask.segments)
            parts = (ask.arrival, ask.num_output, segments, ask.text, ask.conversation, ask.ignore_eos)
            digest.update(repr(parts).encode())
        return digest.hexdigest()[:16]
