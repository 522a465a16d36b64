"""Does a set of plugins give what everything-off gives?

`verify_equivalence` runs the standard workload with a set and without any plugin, in float64, and compares what the
callers got. `compare_greedy` is for logits of another implementation: token for token, or different only where those
were undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SwitchgearError
from ..gateway.llm import LLM
from ..gateway.results import PositionLogprobs
from .subject import Plugins, classes_of
from .teacher_forced import DTYPES, compare_forced
from .workload import CASES, Answer, Case, run_workload

if TYPE_CHECKING:
    import torch

MARGIN = 1e-4
"""Largest gap between the reference's top two logits, in float32, that excuses a different token."""
LOGPROB_TOLERANCE = 1e-6
"""Log probabilities of equal tokens in float64: sums in another order differ by less."""
PASSES = ("cold", "warm")
"""The workload runs twice on the same engine; the second time a cache has seen it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of comparing a set of plugins with everything-off."""

    kind: Literal["equal", "differs", "refuses"]
    text: str = ""
    """The first difference, or the reason of the refusal."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class Oracle:
    """Tiny models and what everything-off makes of a case, each made once. directory: where the models are kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._expected: dict[str, list[list[Answer]]] = {}
        self._verdicts: dict[str, Verdict] = {}

    def model(self, overrides: Mapping[str, Any]) -> str:
        """The path of the tiny model with these entries in its config."""
        from .tiny import make_tiny_model

        path = self.directory / ("tiny" + "".join(f"-{key}-{value}" for key, value in sorted(overrides.items())))
        return str(path if path.is_dir() else make_tiny_model(path, **overrides))

    def answers(self, case: Case, plugins: Plugins, classes: Iterable[type] = ()) -> list[list[Answer]]:
        """Per pass, what a set of plugins answers. Raises SwitchgearError where it refuses."""
        with self.engine(case, plugins, classes) as llm:
            passes = []
            for _ in PASSES:
                passes.append(run_workload(llm, case.asks))
                problems = llm.audit()
                if problems:
                    raise Unbalanced("; ".join(problems))
            return passes

    def engine(self, case: Case, plugins: Plugins, classes: Iterable[type] = ()) -> LLM:
        """An engine for a case, in float64."""
        return LLM(
            self.model(case.model),
            dtype="float64",
            plugins=plugins,
            plugin_classes=classes_of(plugins, tuple(classes)),
            kv_bytes=case.num_kv_tokens * kv_bytes_per_token(case.model),
            **case.engine,
        )

    def expected(self, case: Case) -> list[list[Answer]]:
        if case.name not in self._expected:
            self._expected[case.name] = self.answers(case, {})
        return self._expected[case.name]

    def verdict(self, plugins: Plugins, classes: Sequence[type] = ()) -> Verdict:
        """As `verify_equivalence` with the standard cases, or teacher-forced for a set that refuses float64.

        A set of installed plugins is judged once.
        """
        if classes:
            return self._judged(plugins, classes)
        key = repr({name: dict(options) for name, options in plugins.items()})
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(plugins, ())
        return self._verdicts[key]

    def _judged(self, plugins: Plugins, classes: Sequence[type]) -> Verdict:
        verdict = verify_equivalence(plugins, self, classes=classes)
        if verdict.kind != "refuses":
            return verdict
        for dtype in DTYPES:
            try:
                forced = compare_forced(self.model({}), plugins, dtype, classes)
            except SwitchgearError:
                continue
            if forced.problem:
                return Verdict("differs", f"in {dtype}, {forced.problem}")
            return Verdict("equal", f"not in float64; in {dtype} everything-off reads its outputs as its own")
        return verdict


class Unbalanced(Exception):
    """The engine's books do not balance after a workload."""


def kv_bytes_per_token(model: Mapping[str, Any]) -> int:
    """K and V of all layers in float64, of a tiny model with these entries in its config."""
    from .tiny import tiny_config

    config = tiny_config(**model)
    return int(config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * config["head_dim"] * 8)


def verify_equivalence(
    plugins: Plugins, oracle: Oracle, *, cases: Sequence[Case] = CASES, classes: Iterable[type] = ()
) -> Verdict:
    """Whether callers get from this set what they get from everything-off, to the token.

    plugins: names and options, in the order in which they apply, with what they require; classes: those of them that
    are not installed. A set that an engine does not start with refuses; that is no difference.
    """
    for case in cases:
        expected = oracle.expected(case)
        try:
            given = oracle.answers(case, plugins, tuple(classes))
        except SwitchgearError as error:
            return Verdict("refuses", str(error))
        except Unbalanced as error:
            return Verdict("differs", f"{case.name}: the books do not balance afterwards: {error}")
        for label, wanted, got in zip(PASSES, expected, given, strict=True):
            for difference in differences(wanted, got):
                return Verdict("differs", f"{case.name}, {label}: {difference}")
    return Verdict("equal")


# -- comparing ------------------------------------------------------------------------------------------------------


def differences(expected: Sequence[Answer], given: Sequence[Answer]) -> Iterator[str]:
    """One sentence for each request whose caller got something else."""
    for wanted, got in zip(expected, given, strict=True):
        problem = stream_problem(got) or difference(wanted, got)
        if problem:
            yield f"request {wanted.ask.name!r} {problem}"


def stream_problem(answer: Answer) -> str | None:
    """A result says the same as the pieces it was streamed in."""
    if answer.result is None:
        return None
    if answer.result.error:
        return f"failed: {answer.result.error}"
    if [choice.text for choice in answer.result.choices] != answer.texts:
        return f"was streamed as {answer.texts}, its result says {[choice.text for choice in answer.result.choices]}"
    return None


def difference(wanted: Answer, got: Answer) -> str | None:
    if wanted.result is None or got.result is None:
        length = wanted.ask.abort_after
        return token_difference(wanted.token_ids[:length], got.token_ids[:length])
    for index, (one, other) in enumerate(zip(wanted.result.choices, got.result.choices, strict=True)):
        problem = token_difference(one.token_ids, other.token_ids)
        if problem is None and one.text != other.text:
            problem = f"has the text {other.text!r}, everything-off {one.text!r}"
        if problem is None and one.finish_reason != other.finish_reason:
            problem = f"ended by {other.finish_reason!r}, everything-off by {one.finish_reason!r}"
        if problem is None:
            problem = logprob_difference(one.logprobs, other.logprobs)
        if problem is not None:
            return f"output {index} {problem}"
    return logprob_difference(wanted.result.prompt_logprobs, got.result.prompt_logprobs)


def token_difference(wanted: Sequence[int], got: Sequence[int]) -> str | None:
    for place, (one, other) in enumerate(zip(wanted, got, strict=False)):
        if one != other:
            return f"has token {other} at position {place}, everything-off has {one}"
    return None if len(wanted) == len(got) else f"has {len(got)} tokens, everything-off has {len(wanted)}"


def logprob_difference(
    wanted: Sequence[PositionLogprobs | None] | None, got: Sequence[PositionLogprobs | None] | None
) -> str | None:
    one, other = flat(wanted), flat(got)
    if len(one) != len(other):
        return f"has {len(other)} log probabilities, everything-off has {len(one)}"
    gap = max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)
    return f"has log probabilities that are off by up to {gap:.2g}" if gap > LOGPROB_TOLERANCE else None


def flat(positions: Sequence[PositionLogprobs | None] | None) -> list[float]:
    """Every number of some log probabilities, in order."""
    given = [position for position in positions or () if position is not None]
    return [value for position in given for value in (position.chosen.logprob, *(top.logprob for top in position.top))]


# -- where the reference is undecided -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against the reference, teacher-forced: the reference read the output itself."""

    num_tokens: int
    num_undecided: int
    """Positions where the output took the runner-up and the reference's margin was below the bound."""
    problem: str = ""
    """The first position that nothing excuses; empty if there is none."""


def compare_greedy(logits: torch.Tensor, token_ids: Sequence[int], margin: float = MARGIN) -> Comparison:
    """logits: `[N, V]` of the reference at the positions that predict `token_ids` `[N]`, given the ones before.

    By induction the reference would have generated the same tokens wherever its best token is the output's.
    """
    best = logits.topk(2, dim=-1)
    num_undecided = 0
    for position, token in enumerate(token_ids):
        first, second = best.indices[position].tolist()
        if token == first:
            continue
        gap = float(best.values[position, 0] - logits[position, token])
        if gap >= margin:
            text = f"position {position}: token {token}, the reference has {first} (then {second}), ahead by {gap:.3g}"
            return Comparison(len(token_ids), num_undecided, text)
        num_undecided += 1
    return Comparison(len(token_ids), num_undecided)
