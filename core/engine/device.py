"""The machine that the engine computes on: its features and the precision that suits it. Imports no torch."""

from __future__ import annotations

import os

from ..records import Device


def device_of(dtype: str) -> Device:
    """The device that this process computes on, with the features that kernels ask for."""
    return Device("cpu", dtype, cpu_features())


def cpu_features() -> tuple[str, ...]:
    """Vector and matrix units by the names the kernel gives them; empty where it gives none."""
    interesting = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return ()
    return tuple(feature for feature in interesting if feature in flags)


def choose_dtype(asked: str) -> tuple[str, str]:
    """(dtype, why) for `auto` or a name."""
    if asked != "auto":
        return asked, "asked for"
    if {"amx_bf16", "avx512_bf16"} & set(cpu_features()):
        return "bfloat16", "this processor multiplies bfloat16"
    return "float32", "this processor does not multiply bfloat16"


def total_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
