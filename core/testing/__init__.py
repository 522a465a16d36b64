"""The verification kit: what holds every plugin to its word, ours and others'.

`pytest --switchgear-plugin NAME` runs all of it (`docs/plugins/verification.md`). The names below are its parts, for
tests of one's own; each is imported when first used, so that importing the kit loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import Check, checks_of
    from .chi_squared import goodness_of_fit
    from .equivalence import Comparison, Oracle, Verdict, compare_greedy, verify_equivalence
    from .failure import KitFailure, NotApplicable
    from .subject import Subject
    from .tiny import make_tiny_model
    from .tiny_gguf import make_tiny_gguf
    from .virtual_run import Observer, VirtualRun
    from .watching import Call, watch
    from .workload import Ask, Case

MODULE_OF = {
    "Ask": "workload",
    "Call": "watching",
    "Case": "workload",
    "Check": "checks",
    "Comparison": "equivalence",
    "KitFailure": "failure",
    "NotApplicable": "failure",
    "Observer": "virtual_run",
    "Oracle": "equivalence",
    "Subject": "subject",
    "Verdict": "equivalence",
    "VirtualRun": "virtual_run",
    "checks_of": "checks",
    "compare_greedy": "equivalence",
    "goodness_of_fit": "chi_squared",
    "make_tiny_gguf": "tiny_gguf",
    "make_tiny_model": "tiny",
    "verify_equivalence": "equivalence",
    "watch": "watching",
}

__all__ = [
    "Ask",
    "Call",
    "Case",
    "Check",
    "Comparison",
    "KitFailure",
    "NotApplicable",
    "Observer",
    "Oracle",
    "Subject",
    "Verdict",
    "VirtualRun",
    "checks_of",
    "compare_greedy",
    "goodness_of_fit",
    "make_tiny_gguf",
    "make_tiny_model",
    "verify_equivalence",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{MODULE_OF[name]}", __name__), name)
