"""What the tests of simulations share: a cost model that can be added up by hand, configs and short workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchgear.core.config import Config, build_config
from switchgear.core.lab.cost_model import CostModel, Curve
from switchgear.core.lab.workload import ALONE, Ask, Segment, Workload

Plugins = Mapping[str, Mapping[str, Any]]

CONTINUOUS: Plugins = {"continuous_batching": {}, "paged_kv": {"block_size": 4}}
CACHED: Plugins = {**CONTINUOUS, "prefix_cache": {}}
CHUNKED: Plugins = {**CONTINUOUS, "chunked_prefill": {"max_num_batched_tokens": 8}}

STEP = CostModel("one second a step", "made up", "none", fixed=1.0)
"""Whatever is in it."""
TOKENS = CostModel("one second a token", "made up", "none", tokens=Curve((1, 2), (1.0, 2.0)))
"""The sum of all tokens of a step."""


def config(plugins: Plugins, **engine: Any) -> Config:
    sections = {"engine": {"max_num_seqs": 4, "max_step_tokens": 256, "max_model_len": 128, **engine}}
    return build_config(sections={**sections, "plugins": plugins})


def ask(arrival: float, num_prompt: int, num_output: int, key: int = 0, conversation: int = ALONE) -> Ask:
    return Ask(arrival, num_output, (Segment(key, num_prompt),), conversation=conversation)


def workload(*asks: Ask, num_clients: int | None = None) -> Workload:
    return Workload("made", asks, num_clients=num_clients)
