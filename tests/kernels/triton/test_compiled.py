"""The kernels compile for GPUs that are not here: see `compiled.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("marker", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_every_kernel_compiles(marker: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker]
    arguments.append(str(TESTS / "kernels" / "triton" / "compiled.py"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment = {**kept, "TRITON_DEFAULT_FP_FUSION": "1", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
