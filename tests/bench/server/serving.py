"""A real server in a process of its own, for the commands of this folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[bytes]
    port: int
    launched: float
    """Reading of `time.perf_counter`."""

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers["content-type"] else text

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def is_ready(self) -> bool:
        try:
            self.get("/ready")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? ([-+.\deE]+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, values))

    def metrics(self, name: str) -> dict[str, float]:
        """A metric by the value of its only label."""
        found = re.findall(rf'^{name}{{\w+="(\w+)"}} (\S+)$', self.get("/metrics"), re.MULTILINE)
        return {label: float(value) for label, value in found}

    def pids(self) -> list[int]:
        """The gateway and its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def memory(self) -> int:
        """Bytes resident in both processes."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> list[float]:
        """Of each process so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids())
        return [(int(stat[11]) + int(stat[12])) / ticks for stat in stats]


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="(%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for switchgear serve")
    return parser


@contextlib.contextmanager
def server(args: argparse.Namespace, extra: Sequence[str] = ()) -> Iterator[Server]:
    """`switchgear serve` on a free port of this machine, ready to answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [word for setting in args.set for word in ("--set", setting)]
    command = [sys.executable, "-m", "switchgear", "serve", "--model", args.model, "--port", str(port)]
    launched = time.perf_counter()
    process = subprocess.Popen([*command, *extra, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = Server(process, port, launched)
    try:
        while not running.is_ready():
            if process.poll() is not None or time.perf_counter() - launched > 300:
                sys.exit("the server did not become ready: run `switchgear serve` by hand to see why")
            time.sleep(0.01)
        yield running
    finally:
        process.terminate()
        process.wait(60)
