"""What a figure was measured on: no number means anything without it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .. import VERSION
from ..engine.device import cpu_features, total_memory

LIBRARIES = ("torch", "numpy", "tokenizers")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, as this process may use it."""

    processor: str
    num_cores: int
    num_threads: int
    """That torch computes with."""
    features: tuple[str, ...]
    memory_bytes: int
    cache_bytes: int
    """The largest cache that the first core reads through; 0 where the system does not say."""
    system: str

    def __str__(self) -> str:
        memory, cache = self.memory_bytes / 2**30, self.cache_bytes / 2**20
        return (
            f"{self.processor}, {self.num_cores} cores, {self.num_threads} threads, {memory:.0f} GiB, cache of "
            f"{cache:.0f} MiB; {' '.join(self.features)}; {self.system}"
        )


def this_machine() -> Machine:
    """Imports torch, which decides on the number of threads."""
    import torch

    return Machine(
        processor=processor_name(),
        num_cores=os.cpu_count() or 1,
        num_threads=torch.get_num_threads(),
        features=cpu_features(),
        memory_bytes=total_memory(),
        cache_bytes=max(map(cache_size, CACHES.glob("index*/size")), default=0),
        system=f"{platform.system()} {platform.machine()}",
    )


def versions() -> dict[str, str]:
    """Of what computes: ourselves, Python and the libraries that matter for speed."""
    return {
        "switchgear": VERSION,
        "python": platform.python_version(),
        **{library: metadata.version(library) for library in LIBRARIES},
    }


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def cache_size(file: Path) -> int:
    """Bytes, from a text such as `32768K`."""
    text = file.read_text(encoding="ascii").strip()
    return int(text.rstrip("KMG")) * UNITS.get(text[-1], 1)
