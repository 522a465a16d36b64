"""Exact attention in tiles: the softmax is taken as the scores come, and they are never all in memory.

Buys memory, which grows with a prompt's length and no longer with its square, and the time that reading and writing the
score matrix takes. Costs nothing but another order of the same sums. FlashAttention (2205.14135).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...core.config import PluginConfig
from ...core.hooks import hookimpl
from ...core.interfaces import KVCodec
from ...core.records import TOKEN_EQUAL, Device, LayerSpec, Refusal

if TYPE_CHECKING:
    from .sdpa import FusedAttention
    from .tiled import TiledAttention


class FlashAttention:
    """Exact attention that never materialises the score matrix: memory linear in the prompt, and less time."""

    name = "flash_attention"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        backend: Literal["auto", "triton", "sdpa"] = "auto"
        """Whose kernels: Triton's on a GPU, PyTorch's own on a CPU, or whichever belongs to the device."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def attention_impl(
        self, layer: LayerSpec, codec: KVCodec, device: Device
    ) -> TiledAttention | FusedAttention | Refusal:
        backend, reason = self._choose(device)
        if backend == "triton":
            from . import tiled

            return tiled.refusal(layer, codec, device) or tiled.TiledAttention(layer, device, reason)
        from . import sdpa

        return sdpa.refusal(layer, device) or sdpa.FusedAttention(layer, codec, device.dtype, reason)

    def _choose(self, device: Device) -> tuple[str, str]:
        """The backend, and what the plan says about it."""
        if self.config.backend != "auto":
            return self.config.backend, f"{self.config.backend}, as the config says"
        backend = "triton" if device.type == "cuda" else "sdpa"
        return backend, f"{backend}, as this is {'a GPU' if backend == 'triton' else 'a CPU'}"
