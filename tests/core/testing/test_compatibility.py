"""docs/compatibility.md is what its command prints today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from switchgear.core.testing.compatibility import page
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.subject import Subject, first_party

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "compatibility.md").read_text()


def test_the_page_is_current(oracle: Oracle) -> None:
    not_run = {name for name in first_party() if Subject(name).lack}
    [*said] = re.findall(r"^Not run on this machine: (.*)$", PAGE, flags=re.MULTILINE)
    if not_run != set(re.findall(r"`(\w+)`, since", " ".join(said))):
        pytest.skip("the page was made where other plugins run")
    assert page(["shortest_first"], oracle) == PAGE
