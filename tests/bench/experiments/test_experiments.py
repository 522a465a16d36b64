"""The experiments repeat exactly, so that what they are asked to show is a test as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def run(script: str, *options: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--json", *options], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table: dict[str, object] = json.loads(done.stdout)
    return table


@pytest.mark.slow
def test_orca() -> None:
    assert run("orca.py", "--requests", "256")["title"]


@pytest.mark.slow
def test_sarathi(shared_data: Path) -> None:
    trace = shared_data / "traces" / "azure_llm_2023_conv.csv"
    assert run("sarathi.py", "--requests", "384", "--trace", str(trace))["title"]
