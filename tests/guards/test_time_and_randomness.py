"""Plugins take time and randomness from the view alone, so that the same object runs in virtual time."""

from pathlib import Path

import pytest
from switchgear.core.testing.chance import sources_of_chance

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = [*sorted((ROOT / "plugins").rglob("*.py")), *sorted((ROOT / "contrib").glob("*/*.py"))]


def test_plugins_have_no_clock_and_no_dice_of_their_own() -> None:
    found = {str(path.relative_to(ROOT)): sources_of_chance(path.read_text()) for path in PLUGINS}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import perf_counter",
        "def pick():\n    import random",
        "import uuid",
        "datetime.datetime.now()",
        "os.urandom(8)",
        "torch.rand(3)",
        "x.uniform_()",
        "np.random.default_rng()",
        "np.random.rand(3)",
    ],
)
def test_a_source_of_chance_is_seen(source: str) -> None:
    assert sources_of_chance(source)


@pytest.mark.parametrize(
    "source",
    ["view.now + 1", "np.random.default_rng(view.seed)", "torch.rand(3, generator=seeded)", "from . import time"],
)
def test_a_seeded_generator_and_the_views_clock_are_fine(source: str) -> None:
    assert sources_of_chance(source) == []
