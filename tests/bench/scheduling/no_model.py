"""An engine that runs no model: every scheduler, allocator and cache is real, and a step computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from switchgear.core.config import PluginConfig, build_config
from switchgear.core.defaults import make_registry
from switchgear.core.engine.assemble import assemble
from switchgear.core.engine.engine import Engine
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import WorkerFactory
from switchgear.core.model.shape_only import BYTES_PER_TOKEN, no_reader, shape_only
from switchgear.core.records import Batch, Device, Equivalence, IntArray, KVSpec, StepOutput

VOCAB_SIZE = 256


class NothingRuns:
    """Takes a step as done at once. Every logit is equal, so a request ends where its `max_tokens` says."""

    max_in_flight = 1

    def __init__(self, kv_spec: KVSpec) -> None:
        self.kv_spec = kv_spec
        self.num_rows: list[int] = []
        """Sequences in each step."""
        self.num_tokens = 0
        """Tokens that a model would have computed."""
        self.last: StepOutput

    def start(self) -> None: ...

    def allocate(self, num_blocks: tuple[int, ...]) -> None: ...

    def submit(self, batch: Batch) -> int:
        self.num_rows.append(len(batch.rows))
        self.num_tokens += len(batch.token_ids)
        self.last = StepOutput(torch.zeros(1, VOCAB_SIZE).expand(len(batch.outputs), VOCAB_SIZE))
        return batch.step

    def collect(self, ticket: int) -> StepOutput:
        return self.last

    def close(self) -> None: ...


class NoModel:
    """Runs no model."""

    name = "no_model"
    equivalence = Equivalence("lossy", "everything", 1.0)

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def execute(self, workers: WorkerFactory) -> NothingRuns:
        return NothingRuns(workers().kv_spec)


def engine_without_model(
    plugins: Mapping[str, Mapping[str, Any]],
    *,
    kv_tokens: int,
    max_model_len: int,
    clock: Callable[[], float] = time.monotonic,
    **options: int,
) -> tuple[Engine, NothingRuns]:
    """The engine of a config in which only the model is missing, and what ran in it.

    plugins: as for `LLM`; kv_tokens: tokens of KV, whatever the block size; options: of the `[engine]` section.
    """
    sections = {
        "engine": {"kv_bytes": kv_tokens * BYTES_PER_TOKEN, "max_model_len": max_model_len, **options},
        "plugins": {**plugins, NoModel.name: {}},
    }
    config = build_config(sections=sections)
    registry = make_registry(config, (NoModel,))
    spec = shape_only("none", vocab_size=VOCAB_SIZE, max_model_len=max_model_len)
    engine = assemble(config, registry, spec, no_reader, Device("cpu", "float32"), clock=clock).engine
    engine.start()
    executor = engine.executor
    assert isinstance(executor, NothingRuns)
    return engine, executor


def random_ids(generator: np.random.Generator, length: int, vocab_size: int = VOCAB_SIZE) -> IntArray:
    """A prompt of `length` token ids."""
    return generator.integers(0, vocab_size, length, dtype=np.int64)
