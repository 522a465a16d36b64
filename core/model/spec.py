"""A model's shape, normalised: what the decoder runs, whatever family the checkpoint is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..records import LayerSpec, LinearPart, LinearSpec


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: base frequency, and how it is stretched for long contexts."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    rotary_size: int = 0
    """Leading elements of a head that are rotated; the rest pass."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    """Multiplies cos and sin (YaRN)."""


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
    eos_ids: frozenset[int] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    """Checkpoint names by role; `{n}` is the layer."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def linear_specs(self) -> list[LinearSpec]:
        """Every linear of the model in the order of the forward, embedding first and head last."""
        specs = [self._vocabulary("embedding", None)]
        for layer in range(self.num_layers):
            specs += [self._qkv(layer), self._o(layer), self._gate_up(layer), self._down(layer)]
        tied_to = self.name_of("embedding") if self.tie_embeddings else None
        return [*specs, self._vocabulary("head", tied_to)]

    def name_of(self, role: str, layer: int = -1) -> str:
        return self.names[role].format(n=layer)

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

    def _gate_up(self, layer: int) -> LinearSpec:
        parts = tuple(LinearPart(self.name_of(role, layer), self.intermediate_size) for role in ("gate", "up"))
        return LinearSpec(self.name_of("gate_up", layer), "gate_up", layer, self.hidden_size, parts, self.mlp_bias)

    def _down(self, layer: int) -> LinearSpec:
        name = self.name_of("down", layer)
        part = LinearPart(name, self.hidden_size)
        return LinearSpec(name, "down", layer, self.intermediate_size, (part,), self.mlp_bias)
