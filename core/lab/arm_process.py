"""One measurement in a process of its own: `python -m switchgear.core.lab.arm_process`, a job in and a result out.

Both are one JSON object, on standard input and standard output; whatever a plugin prints goes to standard error. A
fresh process has no warm allocator, no compiled code and no leaked memory of the arm before it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from ..config import Config
from ..errors import SwitchgearError
from .bench_run import Run, measure_arm
from .equality import Answer, Said, check
from .measured import Measured
from .workload import Workload

T = TypeVar("T")
Job = Mapping[str, Any]


def measure(job: Job) -> dict[str, Any]:
    """Run a workload: `config`, `workload`, `warm`."""
    run = measure_arm(of(job["config"], Config), of(job["workload"], Workload), warm=job["warm"])
    return asdict(measured_of(run))


def measured_of(run: Run) -> Measured:
    answers = tuple(Answer(one.index, one.token_ids, one.text, one.finish_reason, one.error) for one in run.served)
    return Measured(
        plan_hash=run.plan_hash,
        environment=run.environment,
        seconds=run.seconds,
        client_cpu_seconds=run.client_cpu_seconds,
        metrics={name: value for name, value in run.metrics().items() if math.isfinite(value)},
        ttft=known(served.ttft for served in run.served),
        tpot=known(served.tpot for served in run.served),
        answers=answers,
    )


def known(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(value for value in values if not math.isnan(value))


def equality(job: Job) -> dict[str, Any]:
    """Check outputs: `off` config, `workload`, `said`, `max_tokens`, `seed`."""
    said = of(job["said"], tuple[Said, ...])
    off, workload = of(job["off"], Config), of(job["workload"], Workload)
    verdicts = check(off, workload, said, max_tokens=job["max_tokens"], seed=job["seed"])
    return {"verdicts": [asdict(verdict) for verdict in verdicts]}


JOBS: Mapping[str, Callable[[Job], dict[str, Any]]] = {"measure": measure, "equality": equality}


def of(value: Any, type: type[T]) -> T:
    """A value of JSON as what it was written from."""
    return msgspec.convert(value, type)


def main() -> None:
    results = os.dup(1)
    os.dup2(2, 1)
    job = json.load(sys.stdin)
    try:
        result = JOBS[job["job"]](job)
    except SwitchgearError as error:
        result = {"refused": str(error)}
    with os.fdopen(results, "wb") as file:
        file.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
