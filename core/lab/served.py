"""What came of one request of a workload, as its client saw it."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Served:
    """One request. Times are seconds after the start of the run; NaN for what never happened."""

    index: int
    """Of its `Ask` in the workload."""
    due: float
    """When it should be sent: its arrival, in a closed loop when its client was free."""
    sent: float
    token_times: tuple[float, ...]
    """When each output token came; tokens that came together have one time."""
    finished: float
    num_prompt: int
    num_output: int
    num_cached: int = UNKNOWN
    """Prompt tokens that were not computed again."""
    queue_wait: float = math.nan
    """Seconds between its arrival in the engine and its first step."""
    token_ids: tuple[int, ...] = ()
    """What was generated; empty where the target gives text only."""
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    """Why it failed; empty of one that was answered."""

    @property
    def ttft(self) -> float:
        """Seconds from when it was due to its first token: a client that lags behind hides no wait."""
        return self.token_times[0] - self.due if self.token_times else math.nan

    @property
    def tpot(self) -> float:
        """Seconds for each output token after the first, so that `T_total = TTFT + (N - 1) x TPOT`."""
        if self.num_output < 2 or not self.token_times:
            return math.nan
        return (self.token_times[-1] - self.token_times[0]) / (self.num_output - 1)

    @property
    def end_to_end(self) -> float:
        return self.finished - self.due
