"""Kernels of our own for the CPU: linears from packed weights, and norm, rope and activation in one pass each.

Buys decode speed, which is the time to read the weights once, and what PyTorch loses between and inside its operations.
Costs a C++ compiler at install, and a moment at load to pack the weights; they are then held packed, and only so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.config import PluginConfig
from ..core.hooks import hookimpl
from ..core.interfaces import StoringRope, TensorReader
from ..core.records import TOKEN_EQUAL, Device, LinearSpec, Refusal

if TYPE_CHECKING:
    import torch

    from ..kernels.cpu.linear import PackedLinear
    from ..kernels.cpu.memory import Arena

DTYPES = ("bfloat16", "float32", "float64")
OPS = ("rms_norm", "rope", "rope_and_cache", "act_mul", "argmax", "top_k")


class NativeCPU:
    """Native CPU kernels for linears and for all that lies between them but attention."""

    name = "native_cpu"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)
    last_in = ("quantize",)
    """Hooks that it answers after every other plugin, wherever it stands in the config."""

    class Config(PluginConfig):
        """Nothing to set: the kernel is chosen by processor, precision and number of rows."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.arena: Arena | None = None
        """Where the packed weights lie."""

    @staticmethod
    def unavailable() -> str:
        """Why this machine cannot run it, with the remedy; empty if it can."""
        from ..kernels.cpu.library import lack

        return lack()

    @hookimpl
    def quantize(self, spec: LinearSpec, device: Device) -> PackedRecipe | Refusal | None:
        if spec.kind == "embedding":
            return None  # rows are looked up there, and a packed row lies in pieces
        refusal = self._refusal(device)
        if refusal is not None:
            return refusal
        from ..kernels.cpu.linear import linear, pack
        from ..kernels.cpu.memory import Arena

        self.arena = self.arena or Arena()
        return PackedRecipe(device.dtype, partial(pack, arena=self.arena), linear)

    @hookimpl
    def fused_ops(self, op: str, device: Device) -> Callable[..., Any] | Refusal | None:
        if op not in OPS:
            return None
        refusal = self._refusal(device)
        if refusal is not None:
            return refusal
        from ..kernels.cpu.act_mul import act_mul
        from ..kernels.cpu.argmax import argmax
        from ..kernels.cpu.rms_norm import rms_norm
        from ..kernels.cpu.rope import rope
        from ..kernels.cpu.rope_and_cache import rope_and_cache
        from ..kernels.cpu.top_k import top_k

        storing = StoringRope(rope_and_cache, layouts=("NSKD",))
        native: tuple[Callable[..., Any], ...] = (rms_norm, rope, storing, act_mul, argmax, top_k)
        return dict(zip(OPS, native, strict=True))[op]

    def _refusal(self, device: Device) -> Refusal | None:
        if device.type != "cpu":
            return Refusal((f"the native kernels are for the CPU, not for {device.type}",))
        if device.dtype not in DTYPES:
            return Refusal((f"there are no native kernels for {device.dtype}, only for {', '.join(DTYPES)}",))
        reason = self.unavailable()
        return Refusal((reason,)) if reason else None


@dataclass(slots=True)
class PackedRecipe:
    """The weight in the kernels' own order; the checkpoint's is let go of."""

    dtype: str
    pack: Callable[..., PackedLinear]
    multiply: Callable[..., torch.Tensor]
    loaded: dict[str, float] = field(default_factory=dict)

    def load(self, reader: TensorReader, spec: LinearSpec) -> PackedLinear:
        import torch

        dtype = getattr(torch, self.dtype)
        weight = reader.fused(spec, "weight", dtype)
        packed = self.pack(weight, reader.fused(spec, "bias", dtype) if spec.has_bias else None)
        self.loaded = {"bytes": float(packed.num_bytes), "bits": 8.0 * weight.itemsize}
        return packed

    def linear(self, x: torch.Tensor, params: PackedLinear, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.multiply(x, params, out)

    def report(self) -> Mapping[str, float]:
        return self.loaded
