"""One oracle for all tests of the kit: models and what everything-off answers are made once."""

from __future__ import annotations

import pytest
from switchgear.core.testing.equivalence import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("kit"))
