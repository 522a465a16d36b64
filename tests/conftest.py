"""What every test may ask for: the data beside the checkout, and one tiny model."""

from __future__ import annotations

import os
from pathlib import Path

# on a shared machine a thread that spins at a barrier keeps the one it waits for from running
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from switchgear.core.testing.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The project's data folder, which lies beside the checkout and is no part of it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the data folder is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a byte-level tokenizer; read-only."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
