"""Where Triton kernels run: on an NVIDIA GPU, and in Triton's interpreter on the CPU, which is for tests."""

from __future__ import annotations

from importlib.util import find_spec

LEAST_CAPABILITY = (8, 0)
"""sm_80: the first with bfloat16."""


def unusable(device: str, dtype: str) -> str:
    """Why no Triton kernel can run on a device of this type in this precision; empty if they can."""
    is_installed = find_spec("triton") is not None
    if device != "cuda":
        if not (is_installed and interprets()):
            return f"the Triton kernels need a CUDA device, and this one is {device}"
        return "Triton's interpreter cannot multiply bfloat16" if dtype == "bfloat16" else ""
    if not is_installed:
        return 'Triton is not installed: pip install "switchgear[triton]"'
    import torch

    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        return "the Triton kernels need a GPU of sm_{}{} or later, and this one is sm_{}{}".format(
            *LEAST_CAPABILITY, *capability
        )
    return ""


def interprets() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)
