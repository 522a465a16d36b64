"""Engines of the real plugins over the model that runs nothing, watched step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchgear.core.engine.engine import Engine
from switchgear.core.sampling_params import SamplingParams
from switchgear.plugins.paged_kv import BlockPool, PagedKV
from switchgear.plugins.prefix_cache import CachedPool, PrefixCache

from ..core.engine.build import Heard, executor_of, virtual_engine
from ..core.engine.build import step as step_and_audit


def engine_of(*classes: type, num_blocks: int | None = 64, block_size: int = 4, **options: Any) -> Engine:
    """An engine of plugin classes; with `paged_kv`, `num_blocks` of `block_size` tokens."""
    plugins: Mapping[str, Mapping[str, Any]] = options.pop("plugins", {})
    pool: dict[str, Any] = {}
    if PagedKV in classes:
        plugins = {**plugins, "paged_kv": {"block_size": block_size}}
        pool = {"num_blocks": num_blocks, "block_size": block_size}
    return virtual_engine(*classes, plugins=plugins, **pool, **options)


def step(engine: Engine, heard: Heard) -> dict[str, int]:
    """One step; the tokens that each request ran, in the order of the batch."""
    names = {sequence.row: sequence.request for sequence in engine.requests}
    before = engine.num_steps
    step_and_audit(engine, heard)
    if engine.num_steps == before:
        return {}
    batch = executor_of(engine).last
    lengths = zip(batch.rows.tolist(), batch.query_lens.tolist(), strict=True)
    return {names[row]: length for row, length in lengths}


def steps(engine: Engine, heard: Heard, max_steps: int = 500) -> list[dict[str, int]]:
    """Every step until nothing is left."""
    ran: list[dict[str, int]] = []
    while engine.has_work:
        assert len(ran) < max_steps, f"still at work: {list(engine.requests)}"
        ran.append(step(engine, heard))
    return [one for one in ran if one]


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    """Exactly `max_tokens` tokens, the same ones every time."""
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, seed=0, **options)


def pool_of(engine: Engine) -> BlockPool:
    allocator = engine.driver.allocator.value
    pool = allocator.inner if isinstance(allocator, CachedPool) else allocator
    assert isinstance(pool, BlockPool)
    return pool


def cache_of(engine: Engine) -> CachedPool:
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, CachedPool)
    return allocator


def cache_plugin_of(engine: Engine) -> PrefixCache:
    (plugin,) = (each.instance for each in engine.parts.registry.plugins if each.name == "prefix_cache")
    assert isinstance(plugin, PrefixCache)
    return plugin
