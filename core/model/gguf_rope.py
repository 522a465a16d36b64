"""Rotary positions from a GGUF: keys for linear and YaRN scaling, a tensor of divisors for Llama 3's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from .gguf_file import GGUFFile

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The same for every Llama 3.x; only `factor` differs."""

SCALING_KEYS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""Below `rope.scaling` in the file, and in config.json."""


def rope_keys(file: GGUFFile, head_size: int) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` of config.json."""
    arch = file.architecture
    theta = file.get(f"{arch}.rope.freq_base", 10000.0)
    if "rope_freqs.weight" in file.tensor_names():
        return {"rope_theta": theta, "rope_scaling": _llama3_scaling(file, theta, head_size)}
    kind = file.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta, "rope_scaling": None}
    values = {name: file.get(f"{arch}.rope.scaling.{key}") for key, name in SCALING_KEYS.items()}
    scaling = {"rope_type": kind, **{name: value for name, value in values.items() if value is not None}}
    return {"rope_theta": theta, "rope_scaling": scaling}


def _llama3_scaling(file: GGUFFile, theta: float, head_size: int) -> dict[str, Any]:
    (divisors,) = file.blocks("rope_freqs.weight")
    scaling = {"rope_type": "llama3", "factor": float(divisors.max()), **LLAMA3}
    if not np.allclose(divisors, _llama3_divisors(scaling, theta, head_size), rtol=1e-4):
        raise ModelError(
            f"{file.path} divides its rotary frequencies in another way than Llama 3 does; "
            "use the model's safetensors instead"
        )
    return scaling


def _llama3_divisors(scaling: dict[str, Any], theta: float, head_size: int) -> npt.NDArray[np.float64]:
    """By how much the frequency of each rotary pair is divided: long waves by `factor`, short ones not at all."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_size, 2) / head_size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))
