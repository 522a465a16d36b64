"""A model's shape, normalised: what the decoder runs, whatever family the checkpoint is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..records import LayerSpec, LinearPart, LinearSpec

LAYER_NORMS = ("input_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm", "q_norm", "k_norm")
"""Roles of the norms that a layer may have."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: base frequency, and how it is stretched for long contexts."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    rotary_size: int = 0
    """Leading elements of a head that are rotated; the rest pass."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    short_factors: tuple[float, ...] = ()
    """LongRoPE: a divisor for each frequency while the context stays within `original_max_len`."""
    long_factors: tuple[float, ...] = ()
    """LongRoPE: the same for longer contexts."""
    attention_factor: float = 1.0
    """Multiplies cos and sin (YaRN, LongRoPE)."""


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A feed-forward of many small ones, of which a router picks a few for each token."""

    num_experts: int
    num_active: int
    """Experts that a token goes to."""
    intermediate_size: int
    renormalize: bool
    """Whether the weights of a token's experts are made to sum to one."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of one decoder-only model. Every field is data: the decoder has no branch per family."""

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_model_len: int
    norm_eps: float
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"]
    layers: tuple[LayerSpec, ...]
    """One entry a layer; equal layers are equal values."""
    ropes: tuple[RopeSpec | None, ...]
    """One entry a layer; None rotates nothing."""
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norm_offset: float = 0.0
    """Added to every stored norm weight, for families that store w - 1."""
    wide_norms: bool = False
    """Norm weights multiply in float32, before the result is rounded to the model's dtype."""
    norms_all_heads: bool = False
    """The norms of q and k are over all heads together, not over each by itself."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """On what each half of a layer adds to the residual stream."""
    logit_multiplier: float = 1.0
    logit_soft_cap: float | None = None
    """Logits become cap * tanh(logits / cap)."""
    experts: ExpertsSpec | None = None
    expert_layers: frozenset[int] = frozenset()
    """Layers whose feed-forward is `experts`; the others are dense."""
    eos_ids: frozenset[int] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    """Checkpoint names by role; `{n}` is the layer, `{e}` the expert. A norm without a name does not exist."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def linear_specs(self) -> list[LinearSpec]:
        """Every linear of the model in the order of the forward, embedding first and head last."""
        specs = [self._vocabulary("embedding", None)]
        for layer in range(self.num_layers):
            specs += [self._qkv(layer), self._o(layer), *self._feed_forward(layer)]
        tied_to = self.name_of("embedding") if self.tie_embeddings else None
        return [*specs, self._vocabulary("head", tied_to)]

    def norm_size(self, role: str, layer: int = -1) -> int:
        """Elements of a norm's weight."""
        if role not in ("q_norm", "k_norm"):
            return self.hidden_size
        spec = self.layers[layer]
        num_heads = spec.num_heads if role == "q_norm" else spec.num_kv_heads
        return (num_heads if self.norms_all_heads else 1) * spec.head_size

    def name_of(self, role: str, layer: int = -1, expert: int = -1) -> str:
        return self.names[role].format(n=layer, e=expert)

    def _vocabulary(self, role: Literal["embedding", "head"], tied_to: str | None) -> LinearSpec:
        name = self.name_of(role)
        part = LinearPart(tied_to or name, self.vocab_size)
        return LinearSpec(name, role, -1, self.hidden_size, (part,), tied_to=tied_to)

    def _qkv(self, layer: int) -> LinearSpec:
        spec = self.layers[layer]
        q_rows, kv_rows = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
        parts = (
            LinearPart(self.name_of("q", layer), q_rows),
            LinearPart(self.name_of("k", layer), kv_rows),
            LinearPart(self.name_of("v", layer), kv_rows),
        )
        return LinearSpec(self.name_of("qkv", layer), "qkv", layer, self.hidden_size, parts, self.qkv_bias)

    def _o(self, layer: int) -> LinearSpec:
        spec, name = self.layers[layer], self.name_of("o", layer)
        part = LinearPart(name, self.hidden_size)
        return LinearSpec(name, "o", layer, spec.num_heads * spec.head_size, (part,), self.o_bias)

    def _feed_forward(self, layer: int) -> list[LinearSpec]:
        if self.experts is None or layer not in self.expert_layers:
            return [self._gate_up(layer), self._down(layer)]
        router = LinearPart(self.name_of("router_part", layer), self.experts.num_experts)
        specs = [LinearSpec(self.name_of("router", layer), "router", layer, self.hidden_size, (router,))]
        for expert in range(self.experts.num_experts):
            specs += self._expert(self.experts, layer, expert)
        return specs

    def _gate_up(self, layer: int) -> LinearSpec:
        parts = tuple(LinearPart(self.name_of(role, layer), self.intermediate_size) for role in ("gate", "up"))
        return LinearSpec(self.name_of("gate_up", layer), "gate_up", layer, self.hidden_size, parts, self.mlp_bias)

    def _down(self, layer: int) -> LinearSpec:
        name = self.name_of("down", layer)
        part = LinearPart(name, self.hidden_size)
        return LinearSpec(name, "down", layer, self.intermediate_size, (part,), self.mlp_bias)

    def _expert(self, experts: ExpertsSpec, layer: int, expert: int) -> list[LinearSpec]:
        def spec(role: str, num_inputs: int, num_rows: int, *part_roles: str) -> LinearSpec:
            parts = tuple(LinearPart(self.name_of(part, layer, expert), num_rows) for part in part_roles)
            stacked = (self.name_of(f"{role}_stack", layer), expert)
            path, count = self.name_of(role, layer, expert), experts.num_experts
            return LinearSpec(path, "experts", layer, num_inputs, parts, num_experts=count, stacked=stacked)

        return [
            spec("expert_gate_up", self.hidden_size, experts.intermediate_size, "expert_gate", "expert_up"),
            spec("expert_down", experts.intermediate_size, self.hidden_size, "expert_down_part"),
        ]
