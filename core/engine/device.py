"""The machine that the engine computes on: its features, and the precision and memory to use. Imports no torch."""

from __future__ import annotations

import os

from ..errors import ConfigError
from ..records import Device
from .cuda import NoGPU, first_gpu

LEAST_FOR_BFLOAT16 = (8, 0)
"""sm_80: the first GPUs that multiply bfloat16."""


def choose_device(asked: str) -> str:
    """The device type for `auto`, `cpu` or `cuda`. Raises ConfigError where there is no GPU and one was asked for."""
    if asked == "cpu":
        return asked
    try:
        first_gpu()
    except NoGPU as reason:
        if asked == "cuda":
            raise ConfigError(f"[model] device = 'cuda' cannot be: {reason}; set it to 'cpu' or 'auto'") from None
        return "cpu"
    return "cuda"


def device_of(dtype: str, device_type: str = "cpu") -> Device:
    """The device of this type that this process computes on, with the features that kernels ask for."""
    if device_type == "cpu":
        return Device(device_type, dtype, cpu_features())
    return Device(device_type, dtype, ("sm_{}{}".format(*first_gpu().capability),))


def cpu_features() -> tuple[str, ...]:
    """Vector and matrix units by the names the kernel gives them; empty where it gives none."""
    interesting = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return ()
    return tuple(feature for feature in interesting if feature in flags)


def choose_dtype(asked: str, device_type: str = "cpu") -> tuple[str, str]:
    """(dtype, why) for `auto` or a name, on a device of this type."""
    if asked != "auto":
        return asked, "asked for"
    if device_type == "cuda":
        what, has_bfloat16 = "GPU", first_gpu().capability >= LEAST_FOR_BFLOAT16
    else:
        what, has_bfloat16 = "processor", bool({"amx_bf16", "avx512_bf16"} & set(cpu_features()))
    if has_bfloat16:
        return "bfloat16", f"this {what} multiplies bfloat16"
    return "float32", f"this {what} does not multiply bfloat16"


def total_memory(device_type: str = "cpu") -> int:
    """Bytes of memory of this machine, or of its GPU."""
    if device_type == "cuda":
        return first_gpu().memory_bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
