"""Every plugin that comes with the engine, and the one in contrib, held to its word by the kit itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.testing.checks import RUNS_HERE, Check, checks_of
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.failure import NotApplicable
from switchgear.core.testing.subject import Subject, first_party

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {"triton_ops": "tests/kernels/triton/test_interpreted.py"}
"""Plugins for GPUs, and the test that runs the kit on them in Triton's interpreter. Here they refuse."""
NAMES = (*first_party(), "shortest_first")


def checks_here(name: str, oracle: Oracle) -> dict[str, Check]:
    checks = {str(check): check for check in checks_of(Subject(name), oracle)}
    if name in ELSEWHERE:
        checks.pop(f"contract::{RUNS_HERE}", None)
    return checks


CHECKS = [(name, check) for name in NAMES for check in checks_here(name, Oracle(Path()))]


@pytest.fixture(scope="session")
def checks(oracle: Oracle) -> dict[tuple[str, str], Check]:
    return {(name, key): check for name in NAMES for key, check in checks_here(name, oracle).items()}


@pytest.mark.parametrize(("name", "check"), CHECKS, ids=[f"{name}-{check}" for name, check in CHECKS])
def test_a_plugin_keeps_its_word(name: str, check: str, checks: dict[tuple[str, str], Check]) -> None:
    try:
        checks[name, check].run()
    except NotApplicable as reason:
        if check == f"contract::{RUNS_HERE}":
            pytest.skip(str(reason))
        pytest.fail(f"no check of ours may be skipped: {reason}")


def test_what_is_not_run_here_is_run_elsewhere() -> None:
    for path in ELSEWHERE.values():
        assert "interpreted_triton_kit.py" in (ROOT / path).read_text()
