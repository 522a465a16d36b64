"""Which plugins give together what everything-off gives: `python -m switchgear.core.testing.compatibility`.

Prints `docs/compatibility.md`. Every plugin alone, every pair and all together, each with what it requires, on the
kit's workload: those that come with the engine, and those whose names are given.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path

from .equivalence import Oracle, Verdict
from .subject import SMALL, Options, Subject, first_party, with_requirements

COMMAND = "python -m switchgear.core.testing.compatibility"

HEAD = """# Compatibility

Made by `{command} > docs/compatibility.md`; a test keeps it current.

Every plugin alone (the diagonal), every pair and all together, each with what it requires, against everything-off: the
same requests on three tiny random models in float64, with room for all, in so little KV that blocks run out, and with
local and global layers, on a cold engine and again on the same one. The requests have ragged prompts, shared and fully
cached prefixes, several outputs, seeded and greedy sampling, penalties, log probabilities of prompt and output, stop
strings, stop tokens, late arrivals and callers that leave. All of them are in
[`core/testing/workload.py`](../core/testing/workload.py).

- **equal**: the same tokens, texts, finish reasons and log probabilities for every request.
- **differs**: not the same; the first difference stands below.
- **refuses**: no engine starts with this set; the reason stands below.
"""


def verdicts(names: Sequence[str], oracle: Oracle) -> dict[tuple[str, ...], Verdict]:
    """For every plugin, every pair and the whole, what came of it; keys are names in order."""
    sets = [tuple(sorted({one, other})) for one, other in combinations_with_replacement(sorted(names), 2)]
    return {chosen: oracle.verdict(set_of(chosen)) for chosen in [*sets, tuple(sorted(names))]}


def set_of(names: Sequence[str]) -> Mapping[str, Options]:
    return with_requirements({name: SMALL.get(name, {}) for name in names})


def page(others: Sequence[str], oracle: Oracle) -> str:
    """The whole page as Markdown. others: plugins beside those that come with the engine."""
    lacks = {name: Subject(name).lack for name in sorted([*first_party(), *others])}
    names = [name for name, lack in lacks.items() if not lack]
    found = verdicts(names, oracle)
    lines = [
        HEAD.format(command=" ".join([COMMAND, *others])),
        "| | " + " | ".join(f"`{name}`" for name in names) + " |",
    ]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in names:
        cells = [found[tuple(sorted({row, column}))].kind for column in names]
        lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
    lines += ["", f"All {len(names)} together: **{found[tuple(names)].kind}**."]
    lines += [f"- {listed(chosen)}: {verdict}" for chosen, verdict in found.items() if verdict.text]
    lines += [f"\nNot run on this machine: {not_run(lacks)}."] if any(lacks.values()) else []
    lines += ["", "Options, where they are not the defaults: " + "; ".join(map(options_of, sorted(SMALL))) + "."]
    return "\n".join(lines) + "\n"


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def not_run(lacks: Mapping[str, str]) -> str:
    return "; ".join(f"`{name}`, since {lack}" for name, lack in lacks.items() if lack)


def options_of(name: str) -> str:
    return f"`{name}` with " + ", ".join(f"`{key} = {value}`" for key, value in SMALL[name].items())


def main(others: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(page(others, Oracle(Path(directory))))


if __name__ == "__main__":
    main(sys.argv[1:])
