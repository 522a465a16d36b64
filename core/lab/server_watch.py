"""What our server tells during a run beside its answers: its metrics, read before, after and every second between."""

from __future__ import annotations

import asyncio
import re

from .http_client import FAILURES, HttpClient
from .plugin_counters import acceptance_rate

SECONDS = 1.0
LINE = re.compile(r"^switchgear_(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


class Page:
    """One page of metrics."""

    def __init__(self, text: str) -> None:
        self.values: dict[str, float] = {}
        self.plan: dict[str, str] = {}
        """`hash`, `environment`, `version` and `model`; empty where the server is none of ours."""
        self.counters: dict[str, dict[str, float]] = {}
        """Per plugin, what it counts."""
        for name, labels, value in LINE.findall(text):
            named = dict(LABEL.findall(labels))
            if name == "plan_info":
                self.plan = named
            elif name == "plugin":
                self.counters.setdefault(named["plugin"], {})[named["name"]] = float(value)
            elif not named:
                self.values[name] = float(value)

    def growth(self, before: Page, name: str) -> float:
        """Of a counter, which may have started again with the engine."""
        now, then = self.values.get(name, 0.0), before.values.get(name, 0.0)
        return now - then if now >= then else now


async def read_page(client: HttpClient) -> Page:
    """Empty where the server has no such page."""
    try:
        head, body = await client.request("GET", "/metrics")
    except FAILURES:
        return Page("")
    return Page(body.decode(errors="replace") if head.status == 200 else "")


class ServerWatch:
    """Looks at a server from `start` to `stop`; tells nothing of one that is none of ours."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.usages: list[float] = []
        """Share of the KV pool in use, whenever somebody ran."""

    async def start(self) -> None:
        self.before = self.after = await read_page(self.client)
        self._task = asyncio.create_task(self._look()) if self.before.plan else None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            page = await read_page(self.client)
            if page.values.get("requests_running"):
                self.usages.append(page.values["kv_usage"])

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self.after = await read_page(self.client)

    def extras(self) -> dict[str, float]:
        if not self.after.plan:
            return {}
        found = {"preemptions": self.after.growth(self.before, "preemptions_total")}
        if num_steps := self.after.growth(self.before, "engine_steps_total"):
            found["batch_size"] = self.after.growth(self.before, "engine_step_rows_total") / num_steps
        if self.usages:
            found["kv_residency"] = sum(self.usages) / len(self.usages)
        if (rate := acceptance_rate(self.before.counters, self.after.counters)) is not None:
            found["acceptance_rate"] = rate
        return found
