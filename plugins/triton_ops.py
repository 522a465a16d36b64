"""Norm, rotary positions with the writing of KV, activation and argmax as Triton kernels, each in one pass.

Buys what PyTorch loses between its operations on a GPU: a launch each, and a read and a write of everything in between.
Costs a second or two of compiling when a model is first run; the results are kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.config import PluginConfig
from ..core.hooks import hookimpl
from ..core.interfaces import StoringRope
from ..core.records import TOKEN_EQUAL, Device, Refusal

OPS = ("rms_norm", "rope", "rope_and_cache", "act_mul", "argmax")


class TritonOps:
    """Triton kernels for norms, rotary positions with the writing of KV, activations and the most likely token."""

    name = "triton_ops"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        """Nothing to set: sizes of tiles follow from the model's."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @staticmethod
    def unavailable() -> str:
        """Why this machine cannot run it; empty if it can."""
        import torch

        from ..kernels.triton._support import unusable

        return unusable("cuda" if torch.cuda.is_available() else "cpu", "float32")

    @hookimpl
    def fused_ops(self, op: str, device: Device) -> Callable[..., Any] | Refusal | None:
        if op not in OPS:
            return None
        from ..kernels.triton._support import unusable

        reason = unusable(device.type, device.dtype)
        if reason:
            return Refusal((reason,))
        from ..kernels.triton.act_mul import act_mul
        from ..kernels.triton.argmax import argmax
        from ..kernels.triton.rms_norm import rms_norm
        from ..kernels.triton.rope import rope
        from ..kernels.triton.rope_and_cache import rope_and_cache

        storing = StoringRope(rope_and_cache, layouts=("NKSD",))
        kernels: tuple[Callable[..., Any], ...] = (rms_norm, rope, storing, act_mul, argmax)
        return dict(zip(OPS, kernels, strict=True))[op]
