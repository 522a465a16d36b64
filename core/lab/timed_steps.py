"""Steps of a real engine, each with what was in it and how long it took: what a cost model is fitted to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RequestError
from ..gateway.live import LiveRequest
from ..gateway.llm import LLM
from ..records import Batch, IntArray, StepOutput
from ..sampling_params import SamplingParams
from .cost_model import StepCounts
from .prompt_ids import id_range


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step."""

    counts: StepCounts
    seconds: float
    """All of it: plan, forward, sampling, and the text that came out."""
    executor_seconds: float
    """The executor's part: the forward. The rest is the engine's own."""
    is_decode: bool
    """Every row computed one token, and its drafts."""


class WatchedExecutor:
    """Passes everything on, and notes what was submitted and how long the executor had it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.batches: list[Batch] = []
        """Submitted and not collected, oldest first."""
        self.last: Batch | None = None
        """The one collected last."""
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, batch: Batch) -> int:
        start = time.perf_counter()
        ticket: int = self.inner.submit(batch)
        self.seconds += time.perf_counter() - start
        self.batches.append(batch)
        return ticket

    def collect(self, ticket: int) -> StepOutput:
        start = time.perf_counter()
        output: StepOutput = self.inner.collect(ticket)
        self.seconds += time.perf_counter() - start
        self.last = self.batches.pop(0)
        return output


class TimedEngine:
    """An engine that is stepped by hand, with random prompts that have nothing in common.

    It ends no request by itself: each one runs until it is dropped or as long as a sequence may be.
    """

    def __init__(self, llm: LLM, seed: int = 0) -> None:
        self.llm = llm
        self.engine = llm._engine
        self.watched = WatchedExecutor(self.engine.executor)
        self.engine.executor = self.watched
        self.random = np.random.default_rng(seed)
        self.ids = id_range(self.engine.parts.vocab_size)

    def add(self, num_prompt: int) -> LiveRequest:
        """A request that generates as long as it may."""
        prompt: IntArray = self.random.integers(self.ids.first, self.ids.end, num_prompt, dtype=np.int64)
        max_tokens = self.engine.parts.limits.max_model_len - num_prompt
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
        return self.llm._submit(prompt, tuple(prompt.tolist()), (), params)

    def drop(self, lives: Sequence[LiveRequest]) -> None:
        for live in lives:
            self.llm._leave(live)

    def step(self) -> TimedStep | None:
        """The next step that computes something; None if nobody has anything to compute. Raises RequestError."""
        self.watched.last, self.watched.seconds = None, 0.0
        start = time.perf_counter()
        self.llm._pump()
        seconds = time.perf_counter() - start
        batch: Batch | None = self.watched.last
        if batch is None:
            return None
        counts = StepCounts.of(batch)
        is_decode = bool((batch.query_lens - batch.num_drafts == 1).all())
        return TimedStep(counts, seconds, self.watched.seconds, is_decode)

    def close(self) -> None:
        self.engine.executor = self.watched.inner


def first_error(lives: Sequence[LiveRequest]) -> None:
    """Raise RequestError if one of the requests failed, since the steps then were not what they should be."""
    if error := next((live.result().error for live in lives if live.is_done and live.result().error), ""):
        raise RequestError(error)
