"""Tables of cos and sin for rotary positions, stretched as the checkpoint says."""

from __future__ import annotations

import math

import torch

from .spec import RopeSpec


def rope_tables(spec: RopeSpec, max_len: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each `[max_len, rotary_size / 2]`. Angles are float32, as every checkpoint was trained.

    max_len: the engine's longest sequence. It alone decides between the two factor lists of LongRoPE: keys in the cache
    are already rotated, so a sequence cannot change over when it outgrows the original context.
    """
    frequencies = inverse_frequencies(spec, max_len)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
    return (angles.cos() * spec.attention_factor).to(dtype), (angles.sin() * spec.attention_factor).to(dtype)


def inverse_frequencies(spec: RopeSpec, max_len: int) -> torch.Tensor:
    """Radians a position, one for each pair of elements: `[rotary_size / 2]` float32."""
    exponents = torch.arange(0, spec.rotary_size, 2, dtype=torch.int64).to(torch.float32) / spec.rotary_size
    powers = spec.theta**exponents
    base = 1.0 / powers
    match spec.kind:
        case "default":
            return base
        case "linear":
            return base / spec.factor
        case "llama3":
            return llama3(base, spec)
        case "yarn":
            return yarn(base, spec)
        case "longrope":
            factors = spec.long_factors if max_len > spec.original_max_len else spec.short_factors
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * powers)


def llama3(base: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    wavelength = 2 * math.pi / base
    low, high = spec.low_freq_factor, spec.high_freq_factor
    smooth = (spec.original_max_len / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / spec.factor + smooth * base
    stretched = torch.where(wavelength > spec.original_max_len / low, base / spec.factor, base)
    is_between = (wavelength >= spec.original_max_len / high) & (wavelength <= spec.original_max_len / low)
    return torch.where(is_between, blended, stretched)


def yarn(base: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """YaRN (2309.00071) section 3.2: interpolate what turns less than beta_slow times, keep what turns often."""

    def dimension_of(num_turns: float) -> float:
        turns = spec.original_max_len / (num_turns * 2 * math.pi)
        return spec.rotary_size * math.log(turns) / (2 * math.log(spec.theta))

    low = max(math.floor(dimension_of(spec.beta_fast)), 0)
    high = min(math.ceil(dimension_of(spec.beta_slow)), spec.rotary_size - 1)
    ramp = (torch.arange(spec.rotary_size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return base / spec.factor * (1 - kept) + base * kept
