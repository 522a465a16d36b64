"""An executor without a model: logits are a hash of what the row's block tables lead to.

It keeps one number for each slot of KV, written and read only through the batch's slots, tables and copies. So a wrong
slot, table, position or copy shows as a wrong token, and a step costs microseconds. `tokens_alone` says what a request
must get, from its prompt and its options, without an engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from switchgear.core.config import PluginConfig
from switchgear.core.engine import noise
from switchgear.core.engine.sampler import Sampler
from switchgear.core.engine.stopping import cut, stop_ids
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import WorkerFactory
from switchgear.core.model.scoring import score_tokens
from switchgear.core.model.shape_only import shape_only
from switchgear.core.model.spec import ModelSpec
from switchgear.core.records import (
    Batch,
    Equivalence,
    IntArray,
    KVSpec,
    StepOutput,
    TokenScores,
)
from switchgear.core.sampling_params import SamplingParams

VOCAB_SIZE = 40
EOS = 2
MAX_MODEL_LEN = 64
WINDOW = 6
"""Of the second KV group."""


def model_of(num_groups: int) -> ModelSpec:
    """The shape of a model with one or two KV groups, the second with a window."""
    windows = (None, WINDOW)[:num_groups]
    return shape_only(
        "virtual", vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, windows=windows, eos_ids=frozenset({EOS})
    )


def marks(token_ids: IntArray, positions: IntArray) -> IntArray:
    """What KV holds for each token: a number that depends on the token and on where it stands."""
    return (token_ids + 1) * 1_000_003 + positions * 7_919


def digest(histories: Sequence[IntArray]) -> int:
    """One number for what each group sees."""
    total = 0
    for history in histories:
        weights = noise.uniform(len(history), 0, np.arange(len(history)), 0)
        total = (total * 31 + int((history * (weights * 2**31).astype(np.int64)).sum())) % 2**62
    return total


def logits_of(digests: Sequence[int]) -> torch.Tensor:
    """`[L, V]` logits, peaked enough that options matter and flat enough that a wrong history shows at once."""
    values = noise.uniform(np.array(digests, dtype=np.int64)[:, None], 0, np.arange(VOCAB_SIZE)[None], 0)
    return torch.from_numpy(4.0 * values).float()


def window_of(group: int, position: int) -> IntArray:
    """The positions that a query at `position` sees."""
    return np.arange(max(0, position - WINDOW + 1) if group else 0, position + 1)


class VirtualExecutor:
    def __init__(self, kv_spec: KVSpec, max_in_flight: int) -> None:
        self.kv_spec = kv_spec
        self.max_in_flight = max_in_flight
        self.num_rows: list[int] = []
        self.num_step_tokens: list[int] = []
        """Of each step."""
        self._outputs: dict[int, StepOutput] = {}

    def start(self) -> None:
        pass

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        self.num_blocks = num_blocks
        self.stores: list[IntArray] = []

    def submit(self, batch: Batch) -> int:
        if not self.stores:
            self.stores = [np.full(count * batch.block_size, -1) for count in self.num_blocks]
        self._check(batch)
        self.num_rows.append(len(batch.rows))
        self.num_step_tokens.append(len(batch.token_ids))
        self.last = batch
        for copy in batch.copies:
            blocks = self.stores[copy.group].reshape(-1, batch.block_size)
            blocks[copy.target] = blocks[copy.source]
        for store, slots in zip(self.stores, batch.slots, strict=True):
            store[slots] = marks(batch.token_ids, batch.positions)
        self._outputs[batch.step] = StepOutput(self._logits(batch, batch.outputs), self._scores(batch))
        return batch.step

    def collect(self, ticket: int) -> StepOutput:
        return self._outputs.pop(ticket)

    def close(self) -> None:
        self._outputs.clear()

    def _check(self, batch: Batch) -> None:
        """What a worker relies on."""
        assert (batch.query_lens > 0).all() and batch.query_start[-1] == len(batch.token_ids)
        assert len(np.unique(batch.rows)) == len(batch.rows)
        last = batch.query_start[1:] - 1
        assert (batch.positions[last] + 1 == batch.context_lens).all()
        assert (np.diff(batch.outputs) > 0).all() and (np.diff(batch.scored) > 0).all()
        for slots in batch.slots:
            assert len(np.unique(slots)) == len(slots), "two tokens are written to one slot"

    def _logits(self, batch: Batch, places: IntArray) -> torch.Tensor:
        owners = np.searchsorted(batch.query_start, places, side="right") - 1
        positions = batch.positions[places].tolist()
        return logits_of([self._read(batch, row, at) for row, at in zip(owners.tolist(), positions, strict=True)])

    def _read(self, batch: Batch, row: int, position: int) -> int:
        histories = []
        for group, (store, tables) in enumerate(zip(self.stores, batch.block_tables, strict=True)):
            seen = window_of(group, position)
            histories.append(store[tables[row, seen // batch.block_size] * batch.block_size + seen % batch.block_size])
        return digest(histories)

    def _scores(self, batch: Batch) -> TokenScores | None:
        if not len(batch.scored):
            return None
        return score_tokens(self._logits(batch, batch.scored), torch.from_numpy(batch.targets), batch.num_top)


class Virtual:
    """Runs no model."""

    name = "virtual"
    equivalence = Equivalence("lossy", "everything", 1.0)

    class Config(PluginConfig):
        max_in_flight: int = 1
        """Steps submitted before the first is collected."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def execute(self, workers: WorkerFactory) -> VirtualExecutor:
        return VirtualExecutor(workers().kv_spec, self.config.max_in_flight)


def digest_alone(tokens: IntArray, num_groups: int) -> int:
    """What the executor would read for the last of `tokens`."""
    everything = marks(tokens, np.arange(len(tokens)))
    return digest([everything[window_of(group, len(tokens) - 1)] for group in range(num_groups)])


def tokens_alone(prompt: Sequence[int], params: SamplingParams, child: int = 0, num_groups: int = 1) -> tuple[int, ...]:
    """The output of one request, from first principles: no queue, no blocks, no batch. `params` bring their seed."""
    assert params.seed is not None
    tokens = list(prompt)
    sampler = Sampler(VOCAB_SIZE, frozenset({EOS}))
    sampler.add(0, params, params.seed, child, lambda: (np.array(tokens), len(prompt)))
    row, nothing = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    while True:
        logits = logits_of([digest_alone(np.array(tokens), num_groups)])
        token = int(sampler.sample(logits, row, row, (nothing,)).token_ids[0])
        end = cut(
            [token],
            num_prompt=len(prompt),
            num_output=len(tokens) - len(prompt),
            params=params,
            stops=stop_ids(params, frozenset({EOS})),
            max_model_len=MAX_MODEL_LEN,
        )
        tokens.append(token)
        if end.reason is not None:
            return tuple(tokens[len(prompt) :])


def prompt_logprobs_alone(prompt: Sequence[int], num_groups: int = 1) -> list[float]:
    """Log probability of each prompt token but the first."""
    tokens = np.array(prompt)
    logits = logits_of([digest_alone(tokens[:end], num_groups) for end in range(1, len(tokens))])
    scores = score_tokens(logits, torch.from_numpy(tokens[1:]), 0)
    logprobs: list[float] = scores.logprobs.tolist()
    return logprobs
