"""A worker: one shard of the weights, its KV tensors, and the step that runs over them. It plans nothing."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..errors import ConfigError, ModelError, PluginError
from ..interfaces import AttentionImpl, KVCodec, Linear, TensorReader, is_capturable
from ..records import Batch, Device, KVCache, KVGroup, KVSpec, LayerSpec, Limits, LinearSpec, Refusal, StepOutput
from ..registry import CORE, Bound, Registry
from . import ops
from .decoder import Decoder, DecoderLayer, Experts, FeedForward, LayerAttention, Ops
from .placing import to_device
from .rope import rope_tables
from .scoring import score_positions, sum_ranges
from .spec import ModelSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step on the device: all that a forward reads there besides weights and KV."""

    token_ids: torch.Tensor
    """`[T]`"""
    positions: torch.Tensor
    """`[T]`"""
    metas: Mapping[tuple[LayerSpec, int], Any]
    """What the attention of each kind of layer and KV group planned."""
    slots: tuple[torch.Tensor, ...]
    """Per group `[T]`, where K and V go; empty where no layer has them stored by `ops.rope_and_cache`."""


class LocalWorker:
    """Answers the worker's hooks for one model, then loads it, then runs steps.

    `resolve` needs no weights, so that a plan can be made and checked without loading anything.
    """

    def __init__(
        self,
        registry: Registry,
        spec: ModelSpec,
        reader: Callable[[], TensorReader],
        device: Device,
        limits: Limits,
        block_size: int,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.registry = registry
        self.spec = spec
        self.reader = reader
        self.device = device
        self.limits = limits
        self.block_size = block_size
        self.shard = shard
        self.dtype: torch.dtype = getattr(torch, device.dtype)
        self.weight_bytes = 0
        self.decoder: Decoder | None = None
        self.caches: list[KVCache] = []
        self.resolve()

    def resolve(self) -> None:
        """Ask the hooks of a worker, in build order: codec, attention, operations, linears."""
        head_sizes = {layer.head_size for layer in self.spec.layers}
        codecs = {size: self._codec(size) for size in sorted(head_sizes)}
        self.codec = codecs[self.spec.layers[0].head_size]
        self.kv_spec = kv_groups(self.spec, codecs)
        self.group_of = {layer: index for index, group in enumerate(self.kv_spec) for layer in group.layers}
        kinds = {layer: self.kv_spec[self.group_of[index]] for index, layer in enumerate(self.spec.layers)}
        self.bound_attention = {layer: self._attention(layer, group) for layer, group in kinds.items()}
        self.attention: dict[LayerSpec, AttentionImpl] = {
            layer: bound.value for layer, bound in self.bound_attention.items()
        }
        self.ops = Ops(
            rms_norm=self._op("rms_norm", ops.rms_norm),
            rope=self._op("rope", ops.rope),
            rope_and_cache=self._op("rope_and_cache", None),
            act_mul=self._op("act_mul", ops.act_mul),
            experts=self._op("experts", ops.experts) if self.spec.experts else ops.experts,
        )
        self.top_k: ops.TopK = self._op("top_k", ops.top_k)
        layouts = getattr(self.ops.rope_and_cache, "layouts", ()) if self.codec.name == "none" else ()
        self.fused_layers = {layer for layer in kinds if self.attention[layer].layout in layouts}
        """Kinds of layers whose K and V `ops.rope_and_cache` stores."""
        specs = self.spec.linear_specs()
        self.recipes = {spec.path: self._recipe(spec) for spec in specs}
        self.unloaded = {spec.path: UnloadedLinear() for spec in specs}
        self.wrapped = {spec.path: self.registry.wrap_linear(spec, self.unloaded[spec.path]) for spec in specs}

    def _codec(self, head_size: int) -> KVCodec:
        bound = self.registry.one("kv_codec", head_size=head_size, device=self.device)
        assert bound is not None, "the default codec always answers"
        codec: KVCodec = bound.value
        return codec

    def _attention(self, layer: LayerSpec, group: KVGroup) -> Bound[AttentionImpl]:
        bound = self.registry.first(
            "attention_impl",
            layer=layer,
            group=group,
            block_size=self.block_size,
            codec=self.codec,
            device=self.device,
        )
        assert bound is not None and not isinstance(bound.value, Refusal), "eager attention refuses nothing"
        layout = bound.value.layout
        if sorted(layout) != sorted("NSKD"):
            raise PluginError(
                f"plugin {bound.plugin!r} names the cache layout {layout!r}: it must be a permutation of 'NSKD'"
            )
        return bound

    def _op(self, name: str, plain: Callable[..., Any] | None) -> Any:
        bound = self.registry.first("fused_ops", op=name, device=self.device)
        return plain if bound is None else bound.value

    def _recipe(self, spec: LinearSpec) -> Bound[Any]:
        bound = self.registry.first("quantize", spec=spec, device=self.device)
        assert bound is not None, "the plain recipe takes every linear"
        return bound

    # -- loading ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the weights, each linear through its recipe. Raises ModelError for a broken checkpoint."""
        with self._fitting("the weights", "take a smaller model or a plugin that stores its weights in fewer bits"):
            self._load(self.reader())

    def _load(self, reader: TensorReader) -> None:
        linears = {spec.path: self._linear(spec, reader) for spec in self.spec.linear_specs()}
        tables = {rope: self._rope_tables(rope) for rope in {*self.spec.ropes} if rope}
        name = self.spec.name_of

        def norm(role: str, layer: int = -1) -> torch.Tensor | None:
            return self._norm(reader, role, layer) if role in self.spec.names else None

        layers = [
            DecoderLayer(
                input_norm=norm("input_norm", index),
                qkv=linears[name("qkv", index)],
                q_norm=norm("q_norm", index),
                k_norm=norm("k_norm", index),
                o=linears[name("o", index)],
                post_attention_norm=norm("post_attention_norm", index),
                mlp_norm=norm("mlp_norm", index),
                feed_forward=self._feed_forward(linears, index),
                post_mlp_norm=norm("post_mlp_norm", index),
                spec=layer,
                rope=tables[rope] if rope else None,
            )
            for index, (layer, rope) in enumerate(zip(self.spec.layers, self.spec.ropes, strict=True))
        ]
        self.decoder = Decoder(
            embedding=linears[name("embedding")],
            layers=tuple(layers),
            final_norm=self._norm(reader, "final_norm"),
            head=linears[name("head")],
            ops=self.ops,
            norm_eps=self.spec.norm_eps,
            # rounded first, as the checkpoints were trained: in bfloat16 a root is another number
            embedding_multiplier=torch.tensor(self.spec.embedding_multiplier, dtype=self.dtype).item(),
            residual_multiplier=self.spec.residual_multiplier,
            logit_multiplier=self.spec.logit_multiplier,
            logit_soft_cap=self.spec.logit_soft_cap,
        )

    def _norm(self, reader: TensorReader, role: str, layer: int = -1) -> torch.Tensor:
        name, size = f"{self.spec.name_of(role, layer)}.weight", self.spec.norm_size(role, layer)
        weight = reader.read(name)
        if weight.shape != (size,):
            raise ModelError(
                f"the tensor {name} is {list(weight.shape)} where config.json means [{size}]; the two files belong to "
                "different models"
            )
        wide = torch.promote_types(self.dtype, torch.float32)
        weight = weight.to(self.device.type, wide if self.spec.wide_norms else self.dtype)
        return weight + self.spec.norm_offset if self.spec.norm_offset else weight

    def _rope_tables(self, rope: RopeSpec) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rope_tables(rope, self.limits.max_model_len, self.dtype)
        return cos.to(self.device.type), sin.to(self.device.type)

    def _feed_forward(self, linears: Mapping[str, Linear], layer: int) -> FeedForward | Experts:
        name, spec, activation = self.spec.name_of, self.spec.experts, self.spec.activation
        if spec is None or layer not in self.spec.expert_layers:
            return FeedForward(linears[name("gate_up", layer)], linears[name("down", layer)], activation, self.ops)
        return Experts(
            router=linears[name("router", layer)],
            gate_up=tuple(linears[name("expert_gate_up", layer, expert)] for expert in range(spec.num_experts)),
            down=tuple(linears[name("expert_down", layer, expert)] for expert in range(spec.num_experts)),
            num_active=spec.num_active,
            renormalize=spec.renormalize,
            activation=activation,
            ops=self.ops,
        )

    def _linear(self, spec: LinearSpec, reader: TensorReader) -> Linear:
        recipe = self.recipes[spec.path]
        try:
            params = recipe.value.load(reader, spec)
        except Exception as error:
            if recipe.plugin == CORE:
                raise
            raise PluginError(f"plugin {recipe.plugin!r} cannot load {spec.path}: {error}") from error
        self.weight_bytes += int(recipe.value.report().get("bytes", 0))
        linear, unloaded = partial(recipe.value.linear, params=params), self.unloaded[spec.path]
        unloaded.linear = linear
        wrapped = self.wrapped[spec.path]
        return linear if wrapped is unloaded else wrapped

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        """Make the KV tensors: for every layer the blocks of its group, in the layout its attention named."""
        with self._fitting("the KV", "lower [engine] kv_bytes"):
            self._allocate(num_blocks)

    def _allocate(self, num_blocks: tuple[int, ...]) -> None:
        for index, layer in enumerate(self.spec.layers):
            layout = self.attention[layer].layout
            sizes = {
                "N": num_blocks[self.group_of[index]],
                "S": self.block_size,
                "K": layer.num_kv_heads,
                "D": self.codec.storage_size(layer.head_size),
            }
            shape = tuple(sizes[axis] for axis in layout)
            dtype = getattr(torch, self.codec.storage_dtype)
            self.caches.append(KVCache(*(lazy_zeros(shape, dtype, self.device.type) for _ in range(2))))

    @contextmanager
    def _fitting(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"there is no room for {what} in the memory of the GPU ({error}): {remedy}") from error

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, batch: Batch) -> StepOutput:
        """One step: block copies, the forward, the logits that were asked for."""
        try:
            with torch.inference_mode():
                return self._run(batch)
        except Exception as error:
            # named here, since a traceback does not cross a process
            raise self.registry.blame(error) or error from error

    def _run(self, batch: Batch) -> StepOutput:
        hidden = self.forward(self.prepare(batch))
        logits = self.logits(hidden[to_device(batch.outputs, self.device.type)])
        scores = None
        if len(batch.scored):
            scores = score_positions(self.logits, hidden, batch.scored, batch.targets, batch.num_top, self.top_k)
        pooled = sum_ranges(hidden, batch.pooled) if len(batch.pooled) else None
        return StepOutput(logits, scores, pooled)

    def prepare(self, batch: Batch) -> Prepared:
        """The first half of a step: block copies, what attention plans, and the batch's numbers on their way."""
        self._copy_blocks(batch)
        kinds = dict.fromkeys((layer, self.group_of[index]) for index, layer in enumerate(self.spec.layers))
        metas = {(layer, group): self.attention[layer].plan(batch, group) for layer, group in kinds}
        token_ids, positions = (to_device(array, self.device.type) for array in (batch.token_ids, batch.positions))
        slots = tuple(to_device(each, self.device.type) for each in batch.slots) if self.fused_layers else ()
        return Prepared(token_ids, positions, metas, slots)

    def forward(self, step: Prepared) -> torch.Tensor:
        """The second half, all of it on the device: hidden states `[T, E]`."""
        assert self.decoder is not None, "load comes before run"
        attention = [
            LayerAttention(
                self.attention[layer],
                step.metas[layer, self.group_of[index]],
                self.caches[index],
                step.slots[self.group_of[index]] if layer in self.fused_layers else None,
            )
            for index, layer in enumerate(self.spec.layers)
        ]
        return self.decoder.forward(step.token_ids, step.positions, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[P, E]` to `[P, V]`, in float32 at least."""
        assert self.decoder is not None
        return self.decoder.logits(hidden)

    def _copy_blocks(self, batch: Batch) -> None:
        for copy in batch.copies:
            for index in self.kv_spec[copy.group].layers:
                axis = self.attention[self.spec.layers[index]].layout.index("N")
                for cache in (self.caches[index].k, self.caches[index].v):
                    cache.select(axis, copy.target).copy_(cache.select(axis, copy.source))

    # -- recording --------------------------------------------------------------------------------------------------

    def uncapturable(self) -> tuple[str, ...]:
        """Why `forward` of a decode step cannot be recorded once and replayed with other numbers; empty if it can.

        What waits for the host is not known before: recording it fails.
        """
        plugins = {bound.plugin for bound in self.bound_attention.values() if not is_capturable(bound.value)}
        wrapped = [path for path, linear in self.wrapped.items() if self._is_bound_to_host(path, linear)]
        reasons = [f"the attention of {plugin} goes by each step's own shapes" for plugin in sorted(plugins)]
        if wrapped:
            reasons.append(f"what a plugin put around {wrapped[0]} does not say that it holds no state on the host")
        if self.spec.experts and self.ops.experts is ops.experts:
            reasons.append("the plain experts ask the host where each token goes")
        return tuple(reasons)

    def _is_bound_to_host(self, path: str, linear: Linear) -> bool:
        return linear is not self.unloaded[path] and not is_capturable(linear)


class UnloadedLinear:
    """Stands for a linear before its weights are read, so that what wraps it is known when the plan is made."""

    __slots__ = ("linear",)
    linear: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def kv_groups(spec: ModelSpec, codecs: dict[int, KVCodec]) -> KVSpec:
    """Layers that see the same window with the same heads share block tables."""
    groups: dict[tuple[int | None, int, int], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        groups.setdefault((layer.window, layer.num_kv_heads, layer.head_size), []).append(index)
    return tuple(
        KVGroup(
            layers=tuple(layers),
            kind="full" if window is None else "window",
            num_heads=num_heads,
            head_size=head_size,
            window=window,
            codec=codecs[head_size].name,
            bytes_per_token=len(layers) * 2 * num_heads * stored_bytes(codecs[head_size], head_size),
        )
        for (window, num_heads, head_size), layers in groups.items()
    )


def stored_bytes(codec: KVCodec, head_size: int) -> int:
    dtype: torch.dtype = getattr(torch, codec.storage_dtype)
    return codec.storage_size(head_size) * dtype.itemsize


LARGE_PAGE = 2 << 20
"""Bytes."""


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Zeros in blocks, the first axis; on a CPU the system hands out their pages when first written.

    So an unused pool costs no memory. For blocks of which many fill a large page it is asked for large ones: a small
    page for every new block costs more than what is written into it. A block that is a large page by itself, such as
    the slot of a whole sequence, may never be filled, and the system would have cleared it in vain.
    """
    if device != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block_bytes = math.prod(shape[1:]) * dtype.itemsize
    if hasattr(mmap, "MADV_HUGEPAGE") and 16 * block_bytes <= LARGE_PAGE:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(*shape)
