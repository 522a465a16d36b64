"""When each token came, by the engine's own clock: a plugin that listens and tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Event


class TokenTimes:
    """Notes when each request was queued and when each of its tokens came."""

    name = "token_times"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.times: dict[int, list[float]] = {}

    @hookimpl
    def observe(self) -> TokenTimes:
        return self

    @hookimpl
    def control(self) -> TokenTimes:
        return self

    def on_events(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.kind in ("queued", "token"):
                self.times.setdefault(event.row, []).append(event.time)

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {"take": self.take}

    def take(self) -> list[list[float]]:
        """Seconds, for each request since the last time: when it was queued, then one entry a token."""
        times, self.times = list(self.times.values()), {}
        return times

    def stats(self) -> Mapping[str, float]:
        return {}
