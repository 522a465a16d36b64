"""Clocks and dice in a module's source: a plugin takes time and randomness from the view, nowhere else."""

from __future__ import annotations

import ast

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
