"""An executor without a model: logits are a hash of what a row's block tables lead to.

It keeps one number for each slot of KV, written and read only through the batch's slots, tables and copies. So a wrong
slot, table, position or copy shows as a wrong token, and a step takes microseconds. `tokens_alone` says what a request
must get, from its prompt and its options, without queue, blocks or batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch

from ..config import PluginConfig
from ..engine import noise
from ..engine.sampler import Sampler
from ..engine.stopping import cut, stop_ids
from ..hooks import hookimpl
from ..interfaces import WorkerFactory
from ..model.scoring import score_tokens
from ..model.shape_only import shape_only
from ..model.spec import ModelSpec
from ..records import TOKEN_EQUAL, Batch, IntArray, KVSpec, StepOutput, TokenScores, Vocabulary
from ..sampling_params import SamplingParams

VOCAB_SIZE = 40
EOS = 2
MAX_MODEL_LEN = 64
WINDOW = 6
"""Tokens that the second KV group sees."""


def virtual_model(num_groups: int) -> ModelSpec:
    """The shape of a model with one KV group, or with two of which the second sees a window."""
    windows = (None, WINDOW)[:num_groups]
    return shape_only(
        "virtual", vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, windows=windows, eos_ids=frozenset({EOS})
    )


def virtual_vocabulary() -> Vocabulary:
    """One character a token, digits and capital letters among them."""
    return Vocabulary(tuple(bytes([ord("0") + id]) for id in range(VOCAB_SIZE)), frozenset({EOS}))


def marks(token_ids: IntArray, positions: IntArray) -> IntArray:
    """`[T]` what KV holds for each token: a number that depends on the token and on where it stands."""
    return (token_ids + 1) * 1_000_003 + positions * 7_919


def logits_of(histories: Sequence[Sequence[IntArray]]) -> torch.Tensor:
    """`[L, V]` from the marks that each entry sees in each group: peaked enough that sampling options matter."""
    digests = []
    for groups in histories:
        digest = 0
        for seen in groups:
            digest = zlib.crc32(seen.tobytes(), digest)
        digests.append(digest)
    values = noise.uniform(np.array(digests, dtype=np.int64)[:, None], 0, np.arange(VOCAB_SIZE)[None], 0)
    return torch.from_numpy(4.0 * values)


def visible(group: int, position: int) -> IntArray:
    """The positions that a query at `position` sees."""
    return np.arange(max(0, position - WINDOW + 1) if group else 0, position + 1)


class VirtualExecutor:
    def __init__(self, kv_spec: KVSpec, max_in_flight: int) -> None:
        self.kv_spec = kv_spec
        self.max_in_flight = max_in_flight
        self.on_submit: list[Callable[[Batch], None]] = []
        """Who wants to see every batch before it runs, after KV was taken for it."""
        self.stores: list[IntArray] = []
        """Per group `[N * S]`, one mark a slot; -1 was never written."""
        self._outputs: dict[int, StepOutput] = {}

    def start(self) -> None:
        """There is nothing to load."""

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        self.num_blocks = num_blocks

    def submit(self, batch: Batch) -> int:
        if not self.stores:
            self.stores = [np.full(count * batch.block_size, -1) for count in self.num_blocks]
        for listener in self.on_submit:
            listener(batch)
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

    def _logits(self, batch: Batch, places: IntArray) -> torch.Tensor:
        owners = np.searchsorted(batch.query_start, places, side="right") - 1
        positions = batch.positions[places].tolist()
        return logits_of([self._seen(batch, row, at) for row, at in zip(owners.tolist(), positions, strict=True)])

    def _seen(self, batch: Batch, row: int, position: int) -> list[IntArray]:
        seen = []
        for group, (store, tables) in enumerate(zip(self.stores, batch.block_tables, strict=True)):
            at = visible(group, position)
            seen.append(store[tables[row, at // batch.block_size] * batch.block_size + at % batch.block_size])
        return seen

    def _scores(self, batch: Batch) -> TokenScores | None:
        if not len(batch.scored):
            return None
        return score_tokens(self._logits(batch, batch.scored), torch.from_numpy(batch.targets), batch.num_top)


class Virtual:
    """Runs no model: the executor that the kit puts under a plugin's scheduling and KV."""

    name = "kit_virtual"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        max_in_flight: int = 1
        """Steps submitted before the first is collected."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def execute(self, workers: WorkerFactory) -> VirtualExecutor:
        self.executor = VirtualExecutor(workers().kv_spec, self.config.max_in_flight)
        return self.executor


@lru_cache(maxsize=4096)
def tokens_alone(
    prompt: tuple[int, ...], params: SamplingParams, child: int = 0, num_groups: int = 1
) -> tuple[int, ...]:
    """The output of one request, from first principles. `params` bring their seed."""
    assert params.seed is not None
    tokens = list(prompt)
    sampler = Sampler(VOCAB_SIZE, frozenset({EOS}))
    sampler.add(0, params, params.seed, child, lambda: (np.array(tokens), len(prompt)))
    row, nothing = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    while True:
        everything = marks(np.array(tokens), np.arange(len(tokens)))
        logits = logits_of([[everything[visible(group, len(tokens) - 1)] for group in range(num_groups)]])
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
