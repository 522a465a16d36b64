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
    from .native import NativeAttention
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
        backend: Literal["auto", "triton", "native", "sdpa"] = "auto"
        """Whose kernels: Triton's on a GPU, our own or PyTorch's on a CPU, or the best of those that run here."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def attention_impl(
        self, layer: LayerSpec, codec: KVCodec, device: Device
    ) -> TiledAttention | NativeAttention | FusedAttention | Refusal:
        if self.config.backend != "auto":
            return self._backend(self.config.backend, "as the config says", layer, codec, device)
        if device.type == "cuda":
            return self._backend("triton", "as this is a GPU", layer, codec, device)
        native = self._backend("native", "as this is a CPU", layer, codec, device)
        if not isinstance(native, Refusal):
            return native
        fused = self._backend("sdpa", f"since {'; '.join(native.reasons)}", layer, codec, device)
        return Refusal((*native.reasons, *fused.reasons)) if isinstance(fused, Refusal) else fused

    def _backend(
        self, backend: str, why: str, layer: LayerSpec, codec: KVCodec, device: Device
    ) -> TiledAttention | NativeAttention | FusedAttention | Refusal:
        """The attention of one backend, or why it cannot serve."""
        reason = f"{backend}, {why}"
        match backend:
            case "triton":
                from . import tiled

                return tiled.refusal(layer, codec, device) or tiled.TiledAttention(layer, device, reason)
            case "native":
                from . import native, sdpa

                refusal = native.refusal(codec, device)
                if refusal is not None:
                    return refusal
                fused = None
                if native.is_slower_than_pytorch(device.dtype) and sdpa.refusal(layer, device) is None:
                    fused = sdpa.FusedAttention(layer, codec, device.dtype, reason)
                    reason += ", and PyTorch's for long rows, which has AMX"
                return native.NativeAttention(layer, device.dtype, fused, reason)
            case _:
                from . import sdpa

                return sdpa.refusal(layer, device) or sdpa.FusedAttention(layer, codec, device.dtype, reason)
