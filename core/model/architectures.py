"""From a config.json to a `ModelSpec`, by the family's row in the architecture table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError
from ..records import LayerSpec
from .families import ARCHITECTURES, SWITCHES, Architecture
from .rope_config import LAYER_TYPES, rope_spec
from .spec import ExpertsSpec, ModelSpec

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def model_spec(name: str, config: Mapping[str, Any], eos_ids: frozenset[int] = frozenset()) -> ModelSpec:
    """The spec of a Hugging Face config.json.

    Raises ModelError, which names the architecture, the key or the value that this engine does not know.
    """
    architecture = (config.get("architectures") or ["(none named)"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"model {name!r} is of architecture {architecture!r}, which this engine cannot run: "
            f"it runs {', '.join(sorted(ARCHITECTURES))}"
        )
    row = ARCHITECTURES[architecture]
    try:
        return build_spec(name, architecture, row, settings_of(row, config), eos_ids)
    except KeyError as error:
        raise ModelError(f"config.json of model {name!r} lacks {error}: the checkpoint is incomplete") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json of model {name!r} cannot be used: {error}") from error


def settings_of(row: Architecture, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the family's defaults. Refuses a switch that the family does not have."""
    if row.text_config:
        config = config[row.text_config]
    fixed = {**{key: value for key, value in SWITCHES.items() if key not in row.defaults}, **row.fixed}
    given = {**(config.get("rope_parameters") or {}), **config}
    for key, value in fixed.items():
        if given.get(key) not in (None, value):
            raise ValueError(f"{key} is {given[key]!r}, and this engine runs the architecture only with {value!r}")
    return {**row.defaults, **config, **fixed}


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
    num_layers = positive(config, "num_hidden_layers")
    is_rotated = rotated_layers(config, num_layers)
    is_local = local_layers(row, config, is_rotated)
    window, scale, soft_cap = window_of(config), score_scale(config, head_size), config["attn_logit_softcapping"]
    ropes = {local: rope_spec(config, head_size, local) for local in {*is_local}}
    experts, expert_layers = experts_spec(config, num_layers)
    return ModelSpec(
        name=name,
        architecture=architecture,
        vocab_size=positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "intermediate_size"),
        max_model_len=positive(config, "max_position_embeddings"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        activation=ACTIVATIONS[activation],  # type: ignore[arg-type]  # values are the spec's literals
        layers=tuple(
            LayerSpec(num_heads, num_kv_heads, head_size, scale, window if local else None, soft_cap)
            for local in is_local
        ),
        ropes=tuple(ropes[local] if rotates else None for local, rotates in zip(is_local, is_rotated, strict=True)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bool(config["attention_bias"]),
        o_bias=bool(config["attention_bias"]) and row.o_bias,
        mlp_bias=bool(config["mlp_bias"]),
        norm_offset=row.norm_offset,
        wide_norms=row.wide_norms,
        norms_all_heads=row.norms_all_heads,
        embedding_multiplier=hidden_size**0.5 if row.scales_embedding else float(config["embedding_multiplier"]),
        residual_multiplier=float(config["residual_multiplier"]),
        logit_multiplier=1.0 / float(config["logits_scaling"]),
        logit_soft_cap=config["final_logit_softcapping"],
        experts=experts,
        expert_layers=expert_layers,
        eos_ids=eos_ids,
        names=row.names,
    )


def positive(config: Mapping[str, Any], key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r}, it must be a positive integer")
    return value


def score_scale(config: Mapping[str, Any], head_size: int) -> float:
    if config["query_pre_attn_scalar"] is not None:
        return math.pow(config["query_pre_attn_scalar"], -0.5)
    if config["attention_multiplier"] is not None:
        return float(config["attention_multiplier"])
    return math.pow(head_size, -0.5)


def rotated_layers(config: Mapping[str, Any], num_layers: int) -> Sequence[bool]:
    """Whether each layer has rope. `no_rope_layers` has a 1 for those that do."""
    flags = config["no_rope_layers"]
    if flags is None:
        interval = config.get("no_rope_layer_interval") or num_layers + 1
        flags = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if len(flags) != num_layers:
        raise ValueError(f"no_rope_layers holds {len(flags)} entries for {num_layers} layers")
    return [bool(flag) for flag in flags]


def window_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that a local layer sees; None where that is the whole context."""
    if not has_window(config):
        return None
    window = positive(config, "sliding_window")
    return window if window < positive(config, "max_position_embeddings") else None


def has_window(config: Mapping[str, Any]) -> bool:
    return config["sliding_window"] is not None and bool(config.get("use_sliding_window", True))


def local_layers(row: Architecture, config: Mapping[str, Any], is_rotated: Sequence[bool]) -> Sequence[bool]:
    """Whether each layer is one of those that a window is for."""
    types = config["layer_types"]
    if types is None:
        return [is_windowed(row, config, layer, rotates) for layer, rotates in enumerate(is_rotated)]
    if len(types) != len(is_rotated):
        raise ValueError(f"layer_types holds {len(types)} entries for {len(is_rotated)} layers")
    unknown = sorted({*types} - {*LAYER_TYPES})
    if unknown:
        raise ValueError(f"layer type {unknown[0]!r} is unknown; known are {', '.join(LAYER_TYPES)}")
    if "sliding_attention" in types and not has_window(config):
        raise ValueError("layer_types names sliding_attention, but sliding_window is off")
    return [layer_type == "sliding_attention" for layer_type in types]


def is_windowed(row: Architecture, config: Mapping[str, Any], layer: int, is_rotated: bool) -> bool:
    match row.windowed:
        case "none":
            return False
        case "all":
            return True
        case "late":
            return layer >= int(config["max_window_layers"])
        case "most":
            return (layer + 1) % positive(config, "sliding_window_pattern") != 0
        case "unrotated":
            return not is_rotated


def experts_spec(config: Mapping[str, Any], num_layers: int) -> tuple[ExpertsSpec | None, frozenset[int]]:
    """The experts of a model and the layers that have them."""
    num_experts = config["num_local_experts"] or config["num_experts"]
    if num_experts is None:
        return None, frozenset()
    num_active = positive(config, "num_experts_per_tok")
    if num_active > num_experts:
        raise ValueError(f"a token cannot go to {num_active} of {num_experts} experts")
    experts = ExpertsSpec(
        num_experts=num_experts,
        num_active=num_active,
        intermediate_size=config.get("moe_intermediate_size") or positive(config, "intermediate_size"),
        renormalize=bool(config.get("norm_topk_prob", True)),
    )
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return experts, frozenset(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense)
