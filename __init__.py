"""switchgear: the LLM inference engine in which every optimization is a switch.

The names below are imported when first used, so that `import switchgear` stays light and imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core import VERSION as __version__

if TYPE_CHECKING:
    from .core.gateway.llm import LLM
    from .core.sampling_params import SamplingParams, Structure

__all__ = ["LLM", "SamplingParams", "Structure", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from .core.gateway.llm import LLM

        return LLM
    if name in ("SamplingParams", "Structure"):
        from .core import sampling_params

        return getattr(sampling_params, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
