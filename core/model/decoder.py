"""The decoder: one forward for every family, over a ragged batch of tokens. Reads top to bottom.

Shapes: `T` tokens in the step, `E` hidden size, `H` query heads, `K` KV heads, `D` head size, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..interfaces import AttentionImpl, Linear, RopeAndCache
from ..records import KVCache, LayerSpec
from .ops import capped


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations between the linears, each the plain one or a plugin's. Signatures: `ops.py`."""

    rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rope: Callable[..., torch.Tensor]
    rope_and_cache: RopeAndCache | None
    """Where a plugin has it; else `rope`, and the attention stores K and V."""
    act_mul: Callable[..., torch.Tensor]
    experts: Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Every token through the same two linears."""

    gate_up: Linear
    down: Linear
    activation: str
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.ops.act_mul(self.gate_up(x), self.activation))


@dataclass(frozen=True, slots=True)
class Experts:
    """Each token through the few experts that the router picks for it."""

    router: Linear
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    num_active: int
    renormalize: bool
    activation: str
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.experts(
            x, self.router(x), self.gate_up, self.down, self.num_active, self.renormalize, self.activation
        )


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """What one layer owns. A norm that is None does nothing."""

    input_norm: torch.Tensor | None
    qkv: Linear
    q_norm: torch.Tensor | None
    """`[D]` for each head by itself, or `[H * D]` for all of them together."""
    k_norm: torch.Tensor | None
    o: Linear
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor | None
    feed_forward: FeedForward | Experts
    post_mlp_norm: torch.Tensor | None
    spec: LayerSpec
    rope: tuple[torch.Tensor, torch.Tensor] | None
    """Tables of cos and sin, `[max_model_len, R / 2]`; equal layers share them."""


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention that a layer uses in this step, and the cache it reads."""

    impl: AttentionImpl
    meta: Any
    cache: KVCache
    slots: torch.Tensor | None = None
    """`[T]` where `ops.rope_and_cache` stores K and V; None where the attention's own `write` does."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A loaded model without its KV."""

    embedding: Linear
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: Linear
    ops: Ops
    norm_eps: float
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_soft_cap: float | None = None

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: Sequence[LayerAttention]
    ) -> torch.Tensor:
        """Hidden states after the final norm, `[T, E]`, for token ids and positions `[T]`."""
        x, residual = scaled(self.embedding(token_ids), self.embedding_multiplier), None
        tables = {id(layer.rope): layer.rope for layer in self.layers if layer.rope is not None}
        turns = {table: (cos[positions], sin[positions]) for table, (cos, sin) in tables.items()}
        for layer, its_attention in zip(self.layers, attention, strict=True):
            x, residual = self._enter(x, residual, layer.input_norm)
            x = self._attend(layer, its_attention, x, turns.get(id(layer.rope)))
            x = self._leave(x, layer.post_attention_norm)
            x, residual = self._enter(x, residual, layer.mlp_norm)
            x = layer.feed_forward(x)
            x = self._leave(x, layer.post_mlp_norm)
        return self._enter(x, residual, self.final_norm)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[P, E]` to `[P, V]`, in float32 at least."""
        logits = self.head(hidden)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return capped(scaled(wide, self.logit_multiplier), self.logit_soft_cap)

    def _enter(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add what the last half layer computed to the residual stream: what the next half reads, and the stream."""
        if norm is not None:
            return self.ops.rms_norm(x, norm, self.norm_eps, residual)
        stream = x if residual is None else x + residual
        return stream, stream

    def _leave(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """What a half layer computed, as it is added to the residual stream."""
        if norm is not None:
            x, _ = self.ops.rms_norm(x, norm, self.norm_eps)
        return scaled(x, self.residual_multiplier)

    def _attend(
        self,
        layer: DecoderLayer,
        attention: LayerAttention,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """turn: cos and sin at the step's positions, `[T, R / 2]`."""
        spec, cache = layer.spec, attention.cache
        qkv = layer.qkv(x).view(len(x), -1, spec.head_size)
        q, k, v = qkv.split_with_sizes((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), 1)
        q, k = self._norm_heads(q, layer.q_norm), self._norm_heads(k, layer.k_norm)
        if turn is not None and attention.slots is not None and self.ops.rope_and_cache is not None:
            q = self.ops.rope_and_cache(q, k, v, *turn, cache.k, cache.v, attention.slots)
        else:
            if turn is not None:
                q, k = self.ops.rope(q, *turn), self.ops.rope(k, *turn)
            attention.impl.write(k, v, cache, attention.meta)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        attention.impl.forward(q, cache, attention.meta, out)
        return layer.o(out.view(len(x), -1))

    def _norm_heads(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is None:
            return x
        normed, _ = self.ops.rms_norm(x.reshape(-1, len(norm)), norm, self.norm_eps)
        return normed.view(x.shape)


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else x * factor
