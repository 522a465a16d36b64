"""Plugins take time and randomness from the view alone, so that the same object runs in virtual time."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = [*sorted((ROOT / "plugins").rglob("*.py")), *sorted((ROOT / "contrib").glob("*/*.py"))]

MODULES = {"random", "secrets", "time", "uuid"}
CALLS = {"datetime.now", "datetime.today", "datetime.utcnow", "date.today", "os.urandom", "os.getrandom"}
TORCH = {"bernoulli", "multinomial", "normal", "rand", "rand_like", "randint", "randn", "randn_like", "randperm"}
IN_PLACE = {"bernoulli_", "exponential_", "normal_", "random_", "uniform_"}


def sources_of_chance(source: str) -> list[str]:
    """Clocks and generators that a module reads; a generator that is seeded in the call itself is none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in MODULES:
                found.append(module)
            case ast.Call(func=ast.Attribute() as function) if not is_seeded(node):
                found += [name for name in [ast.unparse(function)] if is_chance(name)]
    return found


def is_seeded(call: ast.Call) -> bool:
    has_generator = any(keyword.arg == "generator" for keyword in call.keywords)
    return has_generator or (ast.unparse(call.func).endswith("random.default_rng") and bool(call.args))


def is_chance(function: str) -> bool:
    owner, _, name = function.rpartition(".")
    return (
        ".".join(function.split(".")[-2:]) in CALLS
        or (owner == "torch" and name in TORCH)
        or owner in ("np.random", "numpy.random")
        or name in IN_PLACE
    )


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
