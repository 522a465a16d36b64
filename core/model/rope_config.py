"""Rotary positions as config.json spells them: `rope_parameters`, or `rope_theta` with `rope_scaling` before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .spec import RopeSpec

KINDS = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn", "longrope": "longrope"}
KINDS["su"] = "longrope"  # its name in the first checkpoints
PARAMETERS = frozenset(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"}
    | {"attention_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    | {"short_factor", "long_factor"}
)
LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_spec(config: Mapping[str, Any], head_size: int, is_local: bool) -> RopeSpec:
    """How local layers rotate, or the others. Raises ValueError for what is not known."""
    parameters, theta = parameters_of(config, is_local)
    unknown = sorted(key for key, value in parameters.items() if key not in PARAMETERS and value is not None)
    if unknown:
        raise ValueError(f"the rope parameter {unknown[0]!r} is unknown")
    named = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = KINDS.get(named)
    if kind is None:
        raise ValueError(f"rope scaling {named!r} is unknown; known are {', '.join(sorted(KINDS))}")
    rotary_size = int(head_size * parameters.get("partial_rotary_factor", config["partial_rotary_factor"]))
    if rotary_size % 2:
        raise ValueError(f"rope cannot rotate {rotary_size} elements of a head in pairs")
    if kind == "default":
        return RopeSpec(theta, rotary_size=rotary_size)
    max_len = config["max_position_embeddings"]
    original = int(
        config.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings") or max_len
    )
    factor = float(parameters["factor"] if kind != "longrope" else parameters.get("factor") or max_len / original)
    if kind == "linear":
        return RopeSpec(theta, "linear", rotary_size, factor)
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        return RopeSpec(theta, "llama3", rotary_size, factor, low, high, original_max_len=original)
    attention_factor = parameters.get("attention_factor")
    if kind == "yarn":
        return RopeSpec(
            theta,
            "yarn",
            rotary_size,
            factor,
            original_max_len=original,
            beta_fast=float(parameters.get("beta_fast") or 32.0),
            beta_slow=float(parameters.get("beta_slow") or 1.0),
            attention_factor=float(attention_factor or yarn_attention_factor(parameters, factor)),
        )
    return RopeSpec(
        theta,
        "longrope",
        rotary_size,
        factor,
        original_max_len=original,
        short_factors=divisors(parameters, "short_factor", rotary_size),
        long_factors=divisors(parameters, "long_factor", rotary_size),
        attention_factor=float(attention_factor or longrope_attention_factor(factor, original)),
    )


def parameters_of(config: Mapping[str, Any], is_local: bool) -> tuple[Mapping[str, Any], float]:
    """The parameters of one kind of layer, and its base frequency.

    Where local layers have a base of their own, the stretching is for the others.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    local_theta = config.get("rope_local_base_freq") if is_local else None
    if any(layer_type in parameters for layer_type in LAYER_TYPES):
        parameters = parameters.get(LAYER_TYPES[is_local]) or {}
    elif local_theta is not None:
        parameters = {}
    theta = parameters.get("rope_theta") or local_theta or config.get("rope_theta") or 10000.0
    return parameters, float(theta)


def divisors(parameters: Mapping[str, Any], key: str, rotary_size: int) -> tuple[float, ...]:
    factors = tuple(float(factor) for factor in parameters[key])
    if len(factors) != rotary_size // 2:
        raise ValueError(f"{key} holds {len(factors)} numbers for the {rotary_size // 2} frequencies of a head")
    return factors


def longrope_attention_factor(factor: float, original_max_len: int) -> float:
    """LongRoPE (2402.13753): the attention of a context `factor` times as long is sharpened by this."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_len)) if factor > 1.0 else 1.0


def yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """YaRN section 3.4: 0.1 ln(factor) + 1, or the ratio of two such terms where a checkpoint names both."""

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
