"""What is measured on, and how its time is taken: a GPU by its own clock, or a CPU where only the script is tested."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from switchgear.core.engine.device import device_of
from switchgear.core.records import Device


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device and the precision of the model on it."""

    device: Device
    is_small: bool
    """Shapes are tiny, and times mean nothing."""

    @property
    def type(self) -> str:
        return self.device.type

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.device.dtype)
        return dtype

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.type == "cuda" else "a CPU, to test the script"

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.type, dtype=self.dtype)

    def synchronize(self) -> None:
        if self.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], num_runs: int = 20) -> float:
        """The median of some runs on the device, after a few that warm it up."""
        num_runs = 1 if self.is_small else num_runs
        for _ in range(0 if self.is_small else 3):
            call()
        if self.type != "cuda":
            return statistics.median(self.seconds_waited(call) for _ in range(num_runs))
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(num_runs)]
        for start, end in marks:
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return float(statistics.median(start.elapsed_time(end) for start, end in marks)) / 1e3

    def seconds_waited(self, call: Callable[[], object]) -> float:
        """Of one run as the host sees it, which waits for the device."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Device memory that a call takes beside what is there; 0 on a CPU, which does not count it."""
        if self.type != "cuda":
            call()
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def this_gpu() -> Hardware:
    return Hardware(device_of("bfloat16", "cuda"), is_small=False)


def this_cpu() -> Hardware:
    # Triton's interpreter cannot multiply bfloat16
    return Hardware(Device("cpu", "float32"), is_small=True)
