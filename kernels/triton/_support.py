"""Where Triton kernels run: on an NVIDIA GPU, and in Triton's interpreter on the CPU, which is for tests."""

from __future__ import annotations

from importlib.util import find_spec


def unusable(device: str, dtype: str) -> str:
    """Why no Triton kernel can run on a device of this type in this precision; empty if they can."""
    if find_spec("triton") is None:
        return 'Triton is not installed: pip install "switchgear[triton]"'
    from triton import knobs

    if device == "cuda":
        return ""
    if not knobs.runtime.interpret:
        return f"Triton compiles for GPUs, and the device is {device}"
    return "Triton's interpreter cannot multiply bfloat16" if dtype == "bfloat16" else ""
