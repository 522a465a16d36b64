"""docs/compatibility.md is what its command prints today."""

from __future__ import annotations

from pathlib import Path

from switchgear.core.testing.compatibility import page
from switchgear.core.testing.equivalence import Oracle

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current(oracle: Oracle) -> None:
    assert page(["shortest_first"], oracle) == (ROOT / "docs" / "compatibility.md").read_text()
