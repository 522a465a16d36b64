"""An executor that computes nothing: a step takes what a cost model says, and every token is as likely as any other."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..config import PluginConfig
from ..hooks import hookimpl
from ..interfaces import WorkerFactory
from ..records import Batch, Equivalence, KVSpec, StepOutput
from .cost_model import CostModel, StepCounts
from .virtual_clock import VirtualClock

if TYPE_CHECKING:
    import torch

VOCAB_SIZE = 64
"""Tokens that a simulated model knows: enough for prompts to differ, and few to sample from."""
NAME = "costed_execution"


class CostedExecutor:
    """Greedy outputs are token 0 over and over, and end where `max_tokens` says."""

    max_in_flight = 1
    stores_kv = False
    """A batch needs no block tables: KV is counted, and never written."""

    def __init__(self, kv_spec: KVSpec, cost_model: CostModel, clock: VirtualClock) -> None:
        self.kv_spec = kv_spec
        self.cost_model = cost_model
        self.clock = clock
        self._seconds = 0.0
        self._num_outputs = 0

    def start(self) -> None:
        """There is nothing to load."""

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        """KV is counted and never written."""

    def submit(self, batch: Batch) -> int:
        self._seconds = self.cost_model.seconds(counts_of(batch))
        self._num_outputs = len(batch.outputs)
        return batch.step

    def collect(self, ticket: int) -> StepOutput:
        self.clock.advance(self._seconds)
        return StepOutput(equal_logits(self._num_outputs))

    def close(self) -> None:
        """Nothing is held."""


def counts_of(batch: Batch) -> StepCounts:
    """What `StepCounts.of` says, at once where each row computes one token, as in most steps of a simulation."""
    num_rows = len(batch.rows)
    if num_rows != len(batch.token_ids):
        return StepCounts.of(batch)
    num_context = int(batch.context_lens.sum())
    return StepCounts(num_rows, num_rows, num_context, num_context, len(batch.outputs))


@lru_cache(maxsize=1024)
def equal_logits(num_rows: int) -> torch.Tensor:
    """`[num_rows, VOCAB_SIZE]`, which nobody writes to."""
    import torch

    return torch.zeros(num_rows, VOCAB_SIZE)


def costed_execution(cost_model: CostModel, clock: VirtualClock) -> type:
    """A plugin class whose executor prices steps by `cost_model` and lets them pass on `clock`."""

    class CostedExecution:
        """Computes nothing: a step takes what a cost model says."""

        name = NAME
        equivalence = Equivalence("lossy", "tokens that are not computed", 1.0)
        hook_api = (1, 0)

        class Config(PluginConfig):
            cost_model: str
            """The cost model's name."""
            source: str
            """Where its numbers come from."""
            digest: str
            """Of the numbers."""

        def __init__(self, config: Config) -> None:
            self.config = config

        @hookimpl
        def execute(self, workers: WorkerFactory) -> CostedExecutor:
            return CostedExecutor(workers().kv_spec, cost_model, clock)

    return CostedExecution
