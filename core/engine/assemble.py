"""Builds an engine from a config, in the one order in which the parts can be sized.

Codec, block size, attention, what everybody needs, number of blocks, allocator. No weights are read: `Engine.start`
does that, so that a plan can be made and checked first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..config import Config, EngineConfig
from ..errors import ConfigError, PluginError
from ..interfaces import KVAllocator, TensorReader
from ..model import ops
from ..model.spec import ModelSpec
from ..records import Device, KVSpec, KVView, Limits, Vocabulary
from ..registry import Bound, Registry
from .device import total_memory
from .engine import Engine
from .kv_pool import check_allocator, sized
from .parts import Parts

DEFAULT_MODEL_LEN = 4096
KV_SHARE = 5
"""A fifth of the memory is for KV unless the config says how much."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """An engine that has not loaded its weights, and what it was built to."""

    engine: Engine
    registry: Registry
    limits: Limits
    kv: KVView
    kv_spec: KVSpec
    device: Device


def assemble(
    config: Config,
    registry: Registry,
    spec: ModelSpec,
    reader: Callable[[], TensorReader],
    device: Device,
    *,
    clock: Callable[[], float] = time.monotonic,
    vocabulary: Callable[[], Vocabulary] | None = None,
) -> Assembled:
    """Ask every hook of an engine and its worker. Raises PluginError or ConfigError; loads nothing.

    vocabulary: reads what each token stands for; without one, a plugin that needs it cannot be on.
    """
    from ..model.worker import LocalWorker

    limits = make_limits(config.engine, spec)
    block_size = registry.block_size(limits)

    def make_worker(shard: tuple[int, int] = (0, 1)) -> LocalWorker:
        return LocalWorker(registry, spec, reader, device, limits, block_size, shard)

    executor_base, executor_wrappers = registry.wrapped("execute", workers=make_worker)
    executor = (executor_wrappers or [executor_base])[-1]
    policy, modifiers = registry.schedule(limits=limits)
    proposer = registry.one("propose_tokens", model=spec, limits=limits)
    logits_stages = registry.every("logits", model=spec, vocabulary=vocabulary or no_vocabulary, clock=clock)
    sinks = registry.every("observe")

    providers = [executor, policy, *modifiers, proposer, *logits_stages]
    with registry.blaming():
        needed = sum(each.value.needs().bytes for each in providers if each and hasattr(each.value, "needs"))
    kv_spec = size_pool(config.engine, limits, executor.value.kv_spec, block_size, needed, registry, device)
    num_blocks = max(group.num_blocks for group in kv_spec)
    kv = KVView(block_size, num_blocks, num_blocks)

    def make_allocator() -> Bound[KVAllocator]:
        base, wrappers = registry.wrapped("allocate_kv", spec=kv_spec, block_size=block_size, num_blocks=num_blocks)
        allocator = (wrappers or [base])[-1]
        check_allocator(allocator, kv_spec)
        return allocator

    argmax, top_k = (registry.first("fused_ops", op=op, device=device) for op in ("argmax", "top_k"))
    parts = Parts(
        registry=registry,
        limits=limits,
        kv=kv,
        kv_spec=kv_spec,
        vocab_size=spec.vocab_size,
        eos_ids=spec.eos_ids,
        policy=policy,
        modifiers=modifiers,
        make_allocator=make_allocator,
        executor=executor,
        proposer=proposer,
        logits_stages=logits_stages,
        argmax=ops.argmax if argmax is None else argmax.value,
        top_k=ops.top_k if top_k is None else top_k.value,
        sinks=sinks,
        model=spec.name,
        seed=config.engine.seed,
        max_overtaken=config.engine.max_overtaken,
        clock=clock,
    )
    return Assembled(Engine(parts), registry, limits, kv, kv_spec, device)


def no_vocabulary() -> Vocabulary:
    raise PluginError("this engine has no tokenizer, so that nobody knows what its tokens stand for")


def make_limits(config: EngineConfig, spec: ModelSpec) -> Limits:
    max_model_len = config.max_model_len or min(spec.max_model_len, DEFAULT_MODEL_LEN)
    if max_model_len > spec.max_model_len:
        raise ConfigError(
            f"[engine] max_model_len = {max_model_len} exceeds the {spec.max_model_len} tokens that model "
            f"{spec.name!r} was trained for: lower it"
        )
    return Limits(config.max_num_seqs, config.max_step_tokens, max_model_len)


def size_pool(
    config: EngineConfig,
    limits: Limits,
    spec: KVSpec,
    block_size: int,
    needed: int,
    registry: Registry,
    device: Device,
) -> KVSpec:
    """The groups with as many blocks as fit into `kv_bytes` beside what providers need."""
    num_bytes = (config.kv_bytes or total_memory(device.type) // KV_SHARE) - needed
    spec = sized(spec, num_bytes, block_size, lambda window: registry.window_blocks(window, limits))
    if block_size >= limits.max_model_len:
        # a sequence never needs a second block, so there is no use for more of them than sequences
        spec = tuple(replace(group, num_blocks=min(group.num_blocks, limits.max_num_seqs)) for group in spec)
    if not max(group.num_blocks for group in spec):
        block_bytes = block_size * sum(group.bytes_per_token for group in spec)
        raise ConfigError(
            f"KV of {num_bytes} bytes holds no block of {block_size} tokens, which takes {block_bytes}: "
            "raise [engine] kv_bytes or lower max_model_len"
        )
    return spec
