"""The architecture table: how a family's config.json becomes a `ModelSpec`. A family is data, not a class.

A new family is a new row: which names its checkpoint uses, which config keys it has, and what is fixed for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError
from ..records import LayerSpec
from .spec import ModelSpec, RopeSpec

LLAMA_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "head": "lm_head",
    "final_norm": "model.norm",
    "input_norm": "model.layers.{n}.input_layernorm",
    "mlp_norm": "model.layers.{n}.post_attention_layernorm",
    "qkv": "model.layers.{n}.self_attn.qkv_proj",
    "q": "model.layers.{n}.self_attn.q_proj",
    "k": "model.layers.{n}.self_attn.k_proj",
    "v": "model.layers.{n}.self_attn.v_proj",
    "o": "model.layers.{n}.self_attn.o_proj",
    "gate_up": "model.layers.{n}.mlp.gate_up_proj",
    "gate": "model.layers.{n}.mlp.gate_proj",
    "up": "model.layers.{n}.mlp.up_proj",
    "down": "model.layers.{n}.mlp.down_proj",
}

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table. A key is looked up in config.json; a row without a key fixes the value itself."""

    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    qkv_bias_key: str = "attention_bias"
    o_bias_key: str = "attention_bias"
    mlp_bias_key: str = "mlp_bias"
    activation_key: str = "hidden_act"


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(),
}


def model_spec(name: str, config: Mapping[str, Any], eos_ids: frozenset[int] = frozenset()) -> ModelSpec:
    """The spec of a Hugging Face config.json. Unknown architectures and missing keys are errors that say which."""
    architecture = (config.get("architectures") or ["(none named)"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"model {name!r} is of architecture {architecture!r}, which this engine cannot run: "
            f"it runs {', '.join(sorted(ARCHITECTURES))}"
        )
    row = ARCHITECTURES[architecture]
    try:
        return build_spec(name, architecture, row, config, eos_ids)
    except KeyError as error:
        raise ModelError(f"config.json of model {name!r} lacks {error}: the checkpoint is incomplete") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json of model {name!r} cannot be used: {error}") from error


def build_spec(
    name: str, architecture: str, row: Architecture, config: Mapping[str, Any], eos_ids: frozenset[int]
) -> ModelSpec:
    hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_size = config.get("head_dim") or hidden_size // num_heads
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
    activation = config.get(row.activation_key, "silu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is unknown; known are {', '.join(ACTIVATIONS)}")
    max_model_len = positive(config, "max_position_embeddings")
    layer = LayerSpec(num_heads, num_kv_heads, head_size, scale=head_size**-0.5)
    num_layers = positive(config, "num_hidden_layers")
    return ModelSpec(
        name=name,
        architecture=architecture,
        vocab_size=positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "intermediate_size"),
        max_model_len=max_model_len,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        activation=ACTIVATIONS[activation],  # type: ignore[arg-type]  # values are the spec's literals
        layers=(layer,) * num_layers,
        ropes=(rope_spec(config, head_size, max_model_len),) * num_layers,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bool(config.get(row.qkv_bias_key, False)),
        o_bias=bool(config.get(row.o_bias_key, False)),
        mlp_bias=bool(config.get(row.mlp_bias_key, False)),
        eos_ids=eos_ids,
        names=row.names,
    )


def positive(config: Mapping[str, Any], key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r}, it must be a positive integer")
    return value


def rope_spec(config: Mapping[str, Any], head_size: int, max_model_len: int) -> RopeSpec:
    """Both spellings: `rope_parameters` (new), or `rope_theta` with `rope_scaling` (old)."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    rotary_size = int(head_size * parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    if kind == "default":
        return RopeSpec(theta, rotary_size=rotary_size)
    factor = float(parameters["factor"])
    original = int(parameters.get("original_max_position_embeddings") or max_model_len)
    if kind == "linear":
        return RopeSpec(theta, "linear", rotary_size, factor)
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        return RopeSpec(theta, "llama3", rotary_size, factor, low, high, original_max_len=original)
    if kind == "yarn":
        attention_factor = parameters.get("attention_factor") or yarn_attention_factor(parameters, factor)
        return RopeSpec(
            theta,
            "yarn",
            rotary_size,
            factor,
            original_max_len=original,
            beta_fast=float(parameters.get("beta_fast") or 32.0),
            beta_slow=float(parameters.get("beta_slow") or 1.0),
            attention_factor=float(attention_factor),
        )
    raise ValueError(f"rope scaling {kind!r} is unknown; known are default, linear, llama3, yarn")


def yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """YaRN section 3.4: 0.1 ln(factor) + 1, or the ratio of two such terms where a checkpoint names both."""

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
