"""What an engine is made of, and what a step carries from stage to stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..interfaces import EventSink, Executor, KVAllocator, LogitsStage, Modifier, Policy, Proposer
from ..model import ops
from ..records import Draft, IntArray, KVSpec, KVView, Limits
from ..registry import Bound, Registry
from .driver import Chosen


@dataclass(frozen=True, slots=True)
class Parts:
    """What the hooks answered, and what they were sized to."""

    registry: Registry
    limits: Limits
    kv: KVView
    kv_spec: KVSpec
    vocab_size: int
    eos_ids: frozenset[int]
    policy: Bound[Policy]
    modifiers: list[Bound[Modifier]]
    make_allocator: Callable[[], Bound[KVAllocator]]
    executor: Bound[Executor]
    proposer: Bound[Proposer] | None
    logits_stages: list[Bound[LogitsStage]]
    argmax: Callable[[torch.Tensor], torch.Tensor]
    top_k: ops.TopK
    sinks: list[Bound[EventSink]]
    model: str
    seed: int
    max_overtaken: int
    clock: Callable[[], float]

    @property
    def num_groups(self) -> int:
        return len(self.kv_spec)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A step that the executor has: who is in it, what was drafted."""

    ticket: int
    chosen: list[Chosen]
    sampling: IntArray
    """Which of them have no more to compute after it, and so sample."""
    draft: Draft
    started: float
