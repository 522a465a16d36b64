"""One engine for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from switchgear.core.config import build_config
from switchgear.core.lab.raw import RawEngine


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[RawEngine]:
    engine = RawEngine(build_config(recipe="all_off", overrides=[f"model.name={tiny_model}", "model.dtype=float32"]))
    yield engine
    engine.close()
