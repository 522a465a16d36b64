"""What one run of one arm brought, and who runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ..config import Config
from ..errors import PluginError
from .equality import Answer, Said, Verdict
from .workload import Workload

MODULE = "switchgear.core.lab.arm_process"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. Times in seconds."""

    plan_hash: str
    environment: str
    seconds: float
    client_cpu_seconds: float
    metrics: Mapping[str, float]
    ttft: tuple[float, ...]
    """Of each request that got a token."""
    tpot: tuple[float, ...]
    answers: tuple[Answer, ...]

    @property
    def outputs(self) -> str:
        """SHA-256 of all tokens: two runs that agree said the same."""
        digest = hashlib.sha256()
        for answer in self.answers:
            digest.update(f"{answer.index}:{','.join(map(str, answer.token_ids))};".encode())
        return digest.hexdigest()


class ArmFailed(PluginError):
    """An arm that started, and did not come to its end."""


class Runner(Protocol):
    """Measures arms. The real one starts a process for each run; tests have others."""

    def measure(self, config: Config, workload: Workload, *, warm: bool, timeout: float) -> Measured:
        """Raises ArmFailed for a run that died or took longer than `timeout` seconds, PluginError for a refusal."""

    def check(
        self, off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int
    ) -> list[Verdict]: ...


class ProcessRunner:
    """A fresh process for every run."""

    def measure(self, config: Config, workload: Workload, *, warm: bool, timeout: float) -> Measured:
        result = run_job({"job": "measure", "config": config, "workload": workload, "warm": warm}, timeout)
        return msgspec.convert(result, Measured)

    def check(
        self, off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int
    ) -> list[Verdict]:
        job = {"job": "equality", "off": off, "workload": workload, "said": list(said), "max_tokens": max_tokens}
        return msgspec.convert(run_job({**job, "seed": seed}, None)["verdicts"], list[Verdict])


def run_job(job: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
    """What `arm_process` makes of a job. Raises PluginError for a refusal and ArmFailed for everything worse."""
    # the child imports what this process does, wherever that was found
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", MODULE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            out, err = process.communicate(msgspec.json.encode(job), timeout)
        except subprocess.TimeoutExpired:
            raise ArmFailed(f"it was not done in {timeout:.0f} s, and was ended") from None
        finally:
            process.kill()
    if process.returncode:
        lines = err.decode(errors="replace").strip().splitlines()
        cause = lines[-1] if lines else "it said nothing"
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise ArmFailed(f"its process ended with {how}: {cause}")
    result: dict[str, Any] = msgspec.json.decode(out)
    if "refused" in result:
        raise PluginError(result["refused"])
    return result
