"""The tests of what Triton computes, each file in a process that interprets: see `interpreted.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).resolve().parents[2]
FILES = ("kernels/triton/interpreted.py", "plugins/interpreted_triton.py", "plugins/interpreted_triton_kit.py")


@pytest.mark.parametrize("marker", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_under_the_interpreter(marker: str) -> None:
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [str(TESTS / file) for file in FILES]
    done = subprocess.run([*arguments, *files], cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
