"""Makes engines and models for tests, and drives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from switchgear import LLM
from switchgear.core.config import build_config
from switchgear.core.defaults import make_registry
from switchgear.core.engine.assemble import assemble
from switchgear.core.engine.emission import Emission
from switchgear.core.engine.engine import Engine
from switchgear.core.model.shape_only import BYTES_PER_TOKEN, no_reader
from switchgear.core.records import Device
from switchgear.core.sampling_params import SamplingParams

from .virtual import MAX_MODEL_LEN, Virtual, VirtualExecutor, model_of


class Clock:
    """Time that passes only when it is read, so that a run repeats."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def virtual_engine(
    *classes: type,
    plugins: Mapping[str, Mapping[str, Any]] | None = None,
    num_blocks: int | None = None,
    block_size: int = MAX_MODEL_LEN,
    num_groups: int = 1,
    max_in_flight: int = 1,
    **engine: Any,
) -> Engine:
    """An engine over the virtual executor.

    classes: plugins to switch on, in this order; plugins: options of those that need any; num_blocks, block_size: of
    the KV pool, which must be what the allocator in `classes` wants.
    """
    options = dict(plugins or {})
    sections = {
        "engine": {"max_num_seqs": 4, "max_step_tokens": 64, **engine},
        "plugins": {
            "virtual": {"max_in_flight": max_in_flight},
            **{str(cls.name): options.pop(cls.name, {}) for cls in classes},  # type: ignore[attr-defined]
        },
    }
    assert not options, f"options for plugins that are not on: {options}"
    if num_blocks is not None:
        sections["engine"]["kv_bytes"] = num_blocks * block_size * num_groups * BYTES_PER_TOKEN
    config = build_config(sections=sections)
    registry = make_registry(config, (Virtual, *classes))
    spec = model_of(num_groups)
    engine_ = assemble(config, registry, spec, no_reader, Device("cpu", "float32"), clock=Clock()).engine
    engine_.start()
    assert num_blocks is None or engine_.parts.kv.num_blocks == num_blocks
    return engine_


def tiny_llm(model: Path, *classes: type, dtype: str = "float32", **engine: Any) -> LLM:
    """The real model with these plugins on, in this order, and all their options as they are by default."""
    plugins: dict[str, dict[str, Any]] = {str(cls.name): {} for cls in classes}  # type: ignore[attr-defined]
    limits = {"max_num_seqs": 8, "max_model_len": 64, **engine}
    return LLM(str(model), dtype=dtype, plugins=plugins, plugin_classes=classes, **limits)


def executor_of(engine: Engine) -> VirtualExecutor:
    executor = engine.executor
    assert isinstance(executor, VirtualExecutor)
    return executor


@dataclass
class Heard:
    """What an engine said, by request and child."""

    tokens: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    finals: dict[tuple[str, int], list[Emission]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def listen(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            key = emission.request, emission.child
            assert not self.finals[key], f"{key} speaks after its end"
            self.tokens[key] += emission.token_ids
            if emission.scores is not None:
                assert len(emission.scores.ranks) == len(emission.token_ids)
                self.logprobs[key] += emission.scores.logprobs.tolist()
            if emission.prompt_scores is not None:
                self.prompt_logprobs[key] += emission.prompt_scores.logprobs.tolist()
            if emission.finish_reason is not None:
                self.finals[key].append(emission)

    def output(self, request: str, child: int = 0) -> tuple[int, ...]:
        return tuple(self.tokens[request, child])

    def reason(self, request: str, child: int = 0) -> str | None:
        (final,) = self.finals[request, child]
        return final.finish_reason

    def error(self, request: str, child: int = 0) -> str:
        (final,) = self.finals[request, child]
        return final.error


def add(engine: Engine, request: str, prompt: Sequence[int], params: SamplingParams, **options: Any) -> None:
    engine.add(request, np.array(prompt, dtype=np.int64), params, **options)


def step(engine: Engine, heard: Heard) -> None:
    """One step, after which the books must balance."""
    heard.listen(engine.step())
    assert engine.audit() == []


def drain(engine: Engine, heard: Heard | None = None, max_steps: int = 2000) -> Heard:
    """Step until nothing is left."""
    heard = heard or Heard()
    for _ in range(max_steps):
        if not engine.has_work:
            return heard
        step(engine, heard)
    raise AssertionError(f"still at work after {max_steps} steps: {list(engine.requests)}")
