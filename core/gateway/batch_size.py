"""The effective batch size: rows in a step, over the last seconds, whoever asks and however often."""

from __future__ import annotations

from collections import deque

from ..engine.messages import Gauges

WINDOW = 10
"""Samples that are looked back over."""


class EffectiveBatchSize:
    """Fed with the engine's sums at regular times."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque([(0, 0)], maxlen=WINDOW + 1)
        """Steps and rows so far."""

    def sample(self, gauges: Gauges) -> None:
        if gauges.num_steps < self._samples[-1][0]:
            # another process began to count anew
            self._samples.clear()
            self._samples.append((0, 0))
        self._samples.append((gauges.num_steps, gauges.step_rows))

    def mean(self) -> float:
        """Rows in a step; 0 where there was none."""
        num_steps = self._samples[-1][0] - self._samples[0][0]
        return (self._samples[-1][1] - self._samples[0][1]) / num_steps if num_steps else 0.0
