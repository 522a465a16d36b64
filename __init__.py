"""switchgear: the LLM inference engine in which every optimization is a switch.

The names below are imported when first used, so that `import switchgear` stays light and imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.llm import LLM
    from .core.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from .core.llm import LLM

        return LLM
    if name == "SamplingParams":
        from .core.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
