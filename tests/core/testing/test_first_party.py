"""Every plugin that comes with the engine, and the one in contrib, held to its word by the kit itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.testing.checks import Check, checks_of
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.failure import NotApplicable
from switchgear.core.testing.subject import Subject, first_party

NAMES = (*first_party(), "shortest_first")
CHECKS = [(name, str(check)) for name in NAMES for check in checks_of(Subject(name), Oracle(Path()))]


@pytest.fixture(scope="session")
def checks(oracle: Oracle) -> dict[tuple[str, str], Check]:
    return {(name, str(check)): check for name in NAMES for check in checks_of(Subject(name), oracle)}


@pytest.mark.parametrize(("name", "check"), CHECKS, ids=[f"{name}-{check}" for name, check in CHECKS])
def test_a_plugin_keeps_its_word(name: str, check: str, checks: dict[tuple[str, str], Check]) -> None:
    try:
        checks[name, check].run()
    except NotApplicable as reason:
        if Subject(name).lack:
            pytest.skip(str(reason))
        pytest.fail(f"no check of ours may be skipped: {reason}")
