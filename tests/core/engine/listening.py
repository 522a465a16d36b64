"""An engine in a child process, and what it said, for tests that drive a loop of their own."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from switchgear.core.config import Config, build_config
from switchgear.core.engine.client import EngineClient
from switchgear.core.engine.emission import Emission
from switchgear.core.sampling_params import SamplingParams

PATIENCE = 30.0
"""Seconds; a child imports torch, and may have to share its core with other tests."""


class Listener:
    """Takes what the client calls back with."""

    def __init__(self) -> None:
        self.emissions: defaultdict[str, list[Emission]] = defaultdict(list)
        self.refused: dict[str, str] = {}
        self.causes: list[tuple[float, str]] = []
        """When the engine was down, and why."""

    def on_emissions(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            self.emissions[emission.request].append(emission)

    def on_refused(self, request: str, cause: str) -> None:
        self.refused[request] = cause

    def on_down(self, cause: str) -> None:
        self.causes.append((time.monotonic(), cause))

    def tokens(self, request: str, child: int = 0) -> list[int]:
        return [token for each in self.emissions[request] if each.child == child for token in each.token_ids]

    def reasons(self, request: str) -> list[str]:
        """Of the outputs that have ended."""
        return [each.finish_reason for each in self.emissions[request] if each.finish_reason is not None]


async def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def config_of(model: Path | str, **engine: Any) -> Config:
    limits = {"max_num_seqs": 8, "max_model_len": 256, "kv_bytes": 1 << 20, **engine}
    return build_config(sections={"model": {"name": str(model), "dtype": "float32"}, "engine": limits})


def client_of(config: Config, listener: Listener, **options: Any) -> EngineClient:
    return EngineClient(
        config,
        on_emissions=listener.on_emissions,
        on_refused=listener.on_refused,
        on_down=listener.on_down,
        **options,
    )


@asynccontextmanager
async def serving(config: Config, **options: Any) -> AsyncIterator[tuple[EngineClient, Listener]]:
    """A client whose engine is ready, closed at the end."""
    listener = Listener()
    client = client_of(config, listener, **options)
    try:
        await client.start()
        async with asyncio.timeout(PATIENCE):
            await client.wait_ready()
        yield client, listener
    finally:
        await client.close()


def ask(client: EngineClient, request: str, num_tokens: int = 4, prompt: int = 5, **options: Any) -> None:
    """Add a greedy request of exactly so many tokens."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, **options)
    client.add(request, np.arange(3, prompt + 3), params)
