"""Results that nobody measured, read as a report reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.lab.analysis import Analysis, analyse

from ..made_results import write_results


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results") / "results.jsonl")


@pytest.fixture(scope="session")
def analysis(results: Path) -> Analysis:
    return analyse(results)


@pytest.fixture(scope="session")
def with_caches(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Cold and warm, and noisy."""
    file = tmp_path_factory.mktemp("with_caches") / "results.jsonl"
    return analyse(write_results(file, warm=True, noise=0.1))
