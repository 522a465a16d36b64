"""What a workload is run on: an engine in this process, or a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ..config import Config
from ..errors import ConfigError
from .bench_run import OnServed, Run, ShouldStop, never
from .workload import Workload
from .workloads import warm_up_workload

if TYPE_CHECKING:
    from ..plan import EffectivePlan

SERVER_WARM_UP_LEN = 40
"""Tokens of a request that warms a server up, whose limit is not known here."""


class Target(Protocol):
    """Ready and warm from its making on. Raises SwitchgearError where it cannot be."""

    name: str
    plan: EffectivePlan | None
    """Of an engine in this process."""

    def run(self, workload: Workload, *, on_served: OnServed | None = None, should_stop: ShouldStop = never) -> Run: ...

    def forget(self) -> bool:
        """Whether what it remembers of prompts is gone now."""
        ...

    def close(self) -> None: ...


class EngineTarget:
    """Our engine in this process."""

    def __init__(self, config: Config) -> None:
        from ..gateway.llm import LLM
        from .in_process import warm_up

        self.llm = LLM.from_config(config)
        self.plan: EffectivePlan | None = self.llm.plan
        self.name = "the engine in this process"
        warm_up(self.llm)

    def run(self, workload: Workload, *, on_served: OnServed | None = None, should_stop: ShouldStop = never) -> Run:
        from .in_process import run_in_process

        return run_in_process(self.llm, workload, on_served=on_served, should_stop=should_stop)

    def forget(self) -> bool:
        if any(plugin.name == "prefix_cache" for plugin in self.llm.plan.plugins):
            self.llm.control("prefix_cache", "reset")
        return True

    def close(self) -> None:
        self.llm.close()


class ServerTarget:
    """A server that speaks OpenAI's API. options: as for `run_over_http`."""

    plan: EffectivePlan | None = None

    def __init__(
        self, url: str, workload: Workload, *, model: str | None, api_key: str, vocab_size: int, request_seconds: float
    ) -> None:
        self.name = self.url = url
        self.model, self.api_key = model, api_key
        self.vocab_size, self.request_seconds = vocab_size, request_seconds
        kind = workload.asks[0]
        warm = self.run(warm_up_workload(SERVER_WARM_UP_LEN, has_text=bool(kind.text), ignore_eos=kind.ignore_eos))
        if error := next((served.error for served in warm.served if served.error), ""):
            raise ConfigError(f"{url} does not serve a short request: {error}")

    def run(self, workload: Workload, *, on_served: OnServed | None = None, should_stop: ShouldStop = never) -> Run:
        from .over_http import run_over_http

        return asyncio.run(
            run_over_http(
                self.url,
                workload,
                model=self.model,
                api_key=self.api_key,
                vocab_size=self.vocab_size,
                request_seconds=self.request_seconds,
                on_served=on_served,
                should_stop=should_stop,
            )
        )

    def forget(self) -> bool:
        return False

    def close(self) -> None: ...
