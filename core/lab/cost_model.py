"""What a step costs, as a formula of what is in it: fitted to this machine by `profile`, or made from published tables.

There are no phases: prefill, chunk, decode and drafts are counts, and one formula prices every mix of them.

    seconds = fixed + per_row * rows + tokens(T) + outputs(O) + per_context * context + per_pair * pairs

The two curves are piecewise linear and never fall. That of the tokens holds the linears: flat while they wait for
memory, then as steep as the arithmetic. That of the outputs holds the head and the sampling, which a chunk that is not
the last of its prompt goes without.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..errors import ConfigError
from ..records import Batch, IntArray

FORMAT = 1
Counted = Sequence[int] | IntArray
RATES = ("fixed", "per_row", "per_context", "per_pair")


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What one step computes."""

    num_rows: int
    num_tokens: int
    """Over all rows, drafts included."""
    num_context: int
    """Tokens of KV that the rows read: the sum of what each has in its cache after the step."""
    num_pairs: int
    """Keys that each query sees, summed over the queries. In decode as many as `num_context`."""
    num_outputs: int
    """Positions whose logits are wanted."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Counted as if every layer saw everything: of a window's layers the cost is what it was when measured."""
        return cls.of_rows(batch.query_lens, batch.context_lens, len(batch.outputs))

    @classmethod
    def of_rows(cls, query_lens: Counted, context_lens: Counted, num_outputs: int) -> Self:
        """query_lens: `[B]` tokens each row computes; context_lens: `[B]` tokens in its cache after the step."""
        queries, contexts = np.asarray(query_lens, dtype=np.int64), np.asarray(context_lens, dtype=np.int64)
        # the last query sees the whole context, the one before it one key fewer
        num_pairs = queries @ contexts - (queries @ (queries - 1)) // 2
        return cls(len(queries), int(queries.sum()), int(contexts.sum()), int(num_pairs), num_outputs)

    @classmethod
    def decode(cls, num_rows: int, context_len: int) -> Self:
        """Rows that compute one token each and have `context_len` in the cache, that one included."""
        num_context = num_rows * context_len
        return cls(num_rows, num_rows, num_context, num_context, num_rows)

    @classmethod
    def prefill(cls, num_tokens: int, num_rows: int = 1) -> Self:
        """Whole prompts of `num_tokens` each, in one step."""
        num_pairs = num_rows * num_tokens * (num_tokens + 1) // 2
        return cls(num_rows, num_rows * num_tokens, num_rows * num_tokens, num_pairs, num_rows)

    def __add__(self, other: StepCounts) -> StepCounts:
        """Both in one step."""
        return StepCounts(
            self.num_rows + other.num_rows,
            self.num_tokens + other.num_tokens,
            self.num_context + other.num_context,
            self.num_pairs + other.num_pairs,
            self.num_outputs + other.num_outputs,
        )


@dataclass(frozen=True)
class Curve:
    """Seconds over a count: linear between the knots, before the first one as there, behind the last one as steep.

    At a count of 0 it costs nothing: a step without outputs has no head.
    """

    counts: tuple[int, ...] = ()
    """Ascending, from 1 on. None: costs nothing anywhere."""
    seconds: tuple[float, ...] = ()
    """At each of them; never falling."""

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.seconds):
            raise ConfigError(f"a curve has {len(self.counts)} counts and {len(self.seconds)} times: give one for each")
        if any(count < 1 for count in self.counts) or not is_rising(self.counts):
            raise ConfigError(f"the counts of a curve must rise from 1 on, not {list(self.counts)}")
        if not all(map(is_cost, self.seconds)) or list(self.seconds) != sorted(self.seconds):
            raise ConfigError(f"the times of a curve must be finite and never fall, not {list(self.seconds)}")

    def at(self, count: int) -> float:
        counts, seconds = self.counts, self.seconds
        if not count or not counts:
            return 0.0
        segment = min(bisect_right(counts, count), len(counts) - 1)
        if count <= counts[0] or not segment:
            return seconds[0]
        return seconds[segment] + self._slopes[segment] * (count - counts[segment])

    @cached_property
    def _slopes(self) -> tuple[float, ...]:
        """Of the segment that ends at each knot; the first knot has none before it."""
        widths = (end - start for start, end in pairwise(self.counts))
        rises = (after - before for before, after in pairwise(self.seconds))
        return (0.0, *(rise / width for rise, width in zip(rises, widths, strict=True)))


@dataclass(frozen=True)
class CostModel:
    """Prices steps. Every term is in seconds and none is negative."""

    name: str
    """The model and what was on, such as "smollm2-135m bfloat16"."""
    source: str
    """Where the numbers come from: the profile's plan hash, or a publication."""
    machine: str
    fixed: float = 0.0
    """Of every step, however little is in it."""
    per_row: float = 0.0
    per_context: float = 0.0
    """Per token of KV that a row reads."""
    per_pair: float = 0.0
    """Per query and key that it sees."""
    tokens: Curve = field(default_factory=Curve)
    outputs: Curve = field(default_factory=Curve)

    def __post_init__(self) -> None:
        for rate in RATES:
            if not is_cost(getattr(self, rate)):
                raise ConfigError(f"{rate} of a cost model must be 0 or more seconds, not {getattr(self, rate)!r}")

    def seconds(self, counts: StepCounts) -> float:
        """What the step takes, from one end of a step to the next: the engine's own work is in it."""
        return (
            self.fixed
            + self.per_row * counts.num_rows
            + self.tokens.at(counts.num_tokens)
            + self.outputs.at(counts.num_outputs)
            + self.per_context * counts.num_context
            + self.per_pair * counts.num_pairs
        )

    @classmethod
    def from_tables(
        cls,
        name: str,
        source: str,
        machine: str,
        *,
        prefill: Iterable[tuple[int, float]] = (),
        decode: Iterable[tuple[int, int, float]] = (),
    ) -> CostModel:
        """From published times. prefill: (prompt tokens, seconds) of one prompt a step; decode: (rows, tokens of
        context each, seconds). Raises ConfigError."""
        from .fit import fit_exactly

        points = [(StepCounts.prefill(num_tokens), seconds) for num_tokens, seconds in prefill]
        points += [(StepCounts.decode(num_rows, length), seconds) for num_rows, length, seconds in decode]
        return fit_exactly(points, name, source, machine)

    # -- as a file --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> CostModel:
        """Reads what `to_json` wrote; whatever else the file says is left alone. Raises ConfigError."""
        if not isinstance(table, Mapping) or table.get("format") != FORMAT:
            raise ConfigError(f"this is no cost model of format {FORMAT}: write one with `switchgear profile --out`")
        try:
            name, source, machine = (str(table[key]) for key in ("name", "source", "machine"))
            fixed, per_row, per_context, per_pair = (float(table[key]) for key in RATES)
            tokens, outputs = (read_curve(table[key]) for key in ("tokens", "outputs"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the cost model cannot be read: {type(error).__name__}: {error}") from error
        return cls(name, source, machine, fixed, per_row, per_context, per_pair, tokens, outputs)

    @classmethod
    def load(cls, path: Path) -> CostModel:
        """Raises ConfigError."""
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read cost model {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"cost model {path} is not valid JSON: {error}") from error
        return cls.from_json(table)


def read_curve(table: Mapping[str, Any]) -> Curve:
    return Curve(tuple(map(int, table["counts"])), tuple(map(float, table["seconds"])))


def is_cost(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def is_rising(counts: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(counts))
