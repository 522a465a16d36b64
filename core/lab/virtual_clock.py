"""Time that passes only when somebody says so."""

from __future__ import annotations


class VirtualClock:
    """Seconds after the start. An engine reads it like any other clock."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Something took so long."""
        assert seconds >= 0, "time does not run backwards"
        self.now += seconds

    def jump(self, time: float) -> None:
        """Nothing happens until then."""
        assert time >= self.now, "time does not run backwards"
        self.now = time
