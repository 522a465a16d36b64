"""Watches the gateway's event loop: whatever blocks it delays every stream at once."""

from __future__ import annotations

import asyncio

from ..engine.client import EngineClient
from .metrics import Metrics

PERIOD = 0.05
SAMPLES_APART = 20
"""Periods between two looks at the engine: a second."""


async def watch_loop(metrics: Metrics, client: EngineClient) -> None:
    """Measure forever how late the loop wakes up, and note each second what the engine did."""
    clock = asyncio.get_running_loop().time
    while True:
        metrics.batch_size.sample(client.gauges)
        for _ in range(SAMPLES_APART):
            due = clock() + PERIOD
            await asyncio.sleep(PERIOD)
            metrics.loop_lag.observe(max(0.0, clock() - due))
