"""The decoder: one forward for every family, over a ragged batch of tokens. Reads top to bottom.

Shapes: `T` tokens in the step, `E` hidden size, `H` query heads, `K` KV heads, `D` head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..interfaces import AttentionImpl, Linear
from ..records import KVCache, LayerSpec


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations between the linears, each the plain one or a plugin's. Signatures: `ops.py`."""

    rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rope: Callable[..., torch.Tensor]
    act_mul: Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """What one layer owns."""

    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    spec: LayerSpec
    rope: tuple[torch.Tensor, torch.Tensor] | None
    """Tables of cos and sin, `[max_model_len, R / 2]`; equal layers share them."""


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention that a layer uses in this step, and the cache it reads."""

    impl: AttentionImpl
    meta: Any
    cache: KVCache


@dataclass(frozen=True, slots=True)
class Decoder:
    """A loaded model without its KV."""

    embedding: Linear
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: Linear
    ops: Ops
    norm_eps: float
    activation: str

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: Sequence[LayerAttention]
    ) -> torch.Tensor:
        """Hidden states after the final norm, `[T, E]`, for token ids and positions `[T]`."""
        x, residual = self.embedding(token_ids), None
        for layer, its_attention in zip(self.layers, attention, strict=True):
            x, residual = self.ops.rms_norm(x, layer.input_norm, self.norm_eps, residual)
            x = self._attend(layer, its_attention, x, positions)
            x, residual = self.ops.rms_norm(x, layer.mlp_norm, self.norm_eps, residual)
            x = layer.down(self.ops.act_mul(layer.gate_up(x), self.activation))
        return self.ops.rms_norm(x, self.final_norm, self.norm_eps, residual)[0]

    def _attend(
        self, layer: DecoderLayer, attention: LayerAttention, x: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        spec = layer.spec
        qkv = layer.qkv(x).view(len(x), -1, spec.head_size)
        q, k, v = torch.split(qkv, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if layer.rope is not None:
            cos, sin = (table[positions] for table in layer.rope)
            q, k = self.ops.rope(q, cos, sin), self.ops.rope(k, cos, sin)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        attention.impl.write(k, v, attention.cache, attention.meta)
        attention.impl.forward(q, attention.cache, attention.meta, out)
        return layer.o(out.view(len(x), -1))
