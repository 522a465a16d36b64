"""A model of which there is nothing but the shape, for engines that compute none: simulations, the kit, benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from ..interfaces import TensorReader
from ..records import LayerSpec
from .spec import ModelSpec

BYTES_PER_TOKEN = 16
"""KV of one layer: K and V of one head of two float32."""
ROLES = ("embedding", "head")
LAYER_ROLES = ("qkv", "q", "k", "v", "o", "gate_up", "gate", "up", "down")


def shape_only(
    name: str,
    *,
    vocab_size: int,
    max_model_len: int,
    windows: Sequence[int | None] = (None,),
    eos_ids: frozenset[int] = frozenset(),
) -> ModelSpec:
    """One layer for each entry of `windows`: the tokens that its queries see, None for all."""
    layers = tuple(LayerSpec(num_heads=1, num_kv_heads=1, head_size=2, scale=1.0, window=window) for window in windows)
    return ModelSpec(
        name=name,
        architecture="none",
        vocab_size=vocab_size,
        hidden_size=2,
        intermediate_size=2,
        max_model_len=max_model_len,
        norm_eps=1e-5,
        activation="silu",
        layers=layers,
        ropes=(None,) * len(layers),
        tie_embeddings=True,
        eos_ids=eos_ids,
        names={role: role for role in ROLES} | {role: f"{role} {{n}}" for role in LAYER_ROLES},
    )


def no_reader() -> TensorReader:
    raise AssertionError("a model that is nothing but its shape has no weights to read")
