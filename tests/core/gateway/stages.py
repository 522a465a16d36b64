"""Ingress stages that answer as a test says, and what happened to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchgear import LLM, SamplingParams
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import (
    TOKEN_EQUAL,
    Completion,
    Continue,
    IngressRequest,
    Outcome,
)

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPT = [5, 6, 7]
MESSAGES = [{"role": "user", "content": "Hello"}]
Enter = Callable[[IngressRequest], Any]
"""The answer of a stage; `Any`, since some of these are none."""

journal: list[tuple[str, str]] = []
"""(what happened, to which stage), for the test that runs."""
outcomes: list[Outcome] = []
requests: list[IngressRequest] = []


def stage(its_name: str, enter: Enter = lambda request: Continue(), its_on_error: str = "reject") -> type:
    """A plugin with one stage that answers as the test says."""

    class Stage:
        """Answers as the test says."""

        name = its_name
        equivalence = TOKEN_EQUAL
        on_error = its_on_error

        class Config(PluginConfig):
            pass

        def __init__(self, config: Config) -> None:
            pass

        @hookimpl
        def on_ingress(self) -> Stage:
            return self

        async def enter(self, request: IngressRequest) -> Any:
            await asyncio.sleep(0)
            journal.append(("enter", its_name))
            requests.append(request)
            return enter(request)

        def leave(self, request: IngressRequest, outcome: Outcome) -> None:
            journal.append(("leave", its_name))
            outcomes.append(outcome)

    return Stage


def make(tiny_model: Path, *stages: type, **engine: Any) -> LLM:
    plugins: dict[str, dict[str, Any]] = {str(cls.name): {} for cls in stages}  # type: ignore[attr-defined]
    limits = {"max_num_seqs": 4, "max_model_len": 64, **engine}
    return LLM(str(tiny_model), dtype="float32", plugins=plugins, plugin_classes=stages, **limits)


def completion(*texts: str) -> Completion:
    return Completion(texts, tuple((7, 8) for _ in texts), ("stop",) * len(texts), served_by="cache")
