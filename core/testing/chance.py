"""Clocks and dice: a plugin takes time and randomness from the view, nowhere else.

Found in a module's source, or by running it on another day.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def another_day() -> Iterator[None]:
    """Every clock of the `time` module is a day later, and the global generators are in another state."""
    import random

    import numpy as np

    clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    states = random.getstate(), np.random.get_state()
    for name, clock in clocks.items():
        setattr(time, name, lambda clock=clock: clock() + 86_400)
    random.seed(86_400)
    np.random.seed(86_400)
    try:
        yield
    finally:
        for name, clock in clocks.items():
            setattr(time, name, clock)
        random.setstate(states[0])
        np.random.set_state(states[1])
