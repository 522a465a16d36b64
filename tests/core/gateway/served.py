"""A server in a process of its own, started as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

PROGRAM = (sys.executable, "-m", "switchgear", "serve")
KV = "engine.kv_bytes=50000000"
START_SECONDS = 60.0


class Served:
    """`switchgear serve` on a free port. Its two outputs are read into `log` as they come."""

    def __init__(self, model: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "--model", str(model), "--dtype", "float32", "--port", "0", "--set", KV, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.log.extend(line.rstrip("\n") for line in output)

    @property
    def url(self) -> str:
        """Where it is, once it said so."""
        return str(wait_for(lambda: next((found[0] for line in self.log if (found := find_url(line))), "")))

    @property
    def engine(self) -> int:
        """The process id of the engine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60.0, **options)

    def metric(self, name: str, **headers: str) -> float:
        """One sample of /metrics, such as `switchgear_requests_running`; 0 for one that is not there."""
        page = httpx2.get(f"{self.url}/metrics", headers=headers).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def end(self, how: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(how)
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code


def find_url(line: str) -> list[str]:
    return re.findall(r"^switchgear serves .* at (http://\S+)", line)


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[Served]:
    """A server that is ready, and gone at the end."""
    served = Served(model, *arguments)
    try:
        assert served.url
        yield served
    finally:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def wait_for(look: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    """What `look` returns as soon as that is something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"waited {seconds} seconds in vain"
        time.sleep(0.01)
    return found


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
