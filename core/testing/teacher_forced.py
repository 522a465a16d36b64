"""Equivalence of what cannot run in float64, where tokens may differ only in places that rounding decides.

Everything-off reads each output itself: where its best token is another one, its own two candidates must be closer than
the margin. By induction it would then have said the same but for such places, which are counted and capped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..gateway.llm import LLM
from ..sampling_params import SamplingParams
from .subject import Plugins, classes_of

if TYPE_CHECKING:
    from ..gateway.results import PositionLogprobs

DTYPES = ("float32", "bfloat16", "float16")
"""In the order in which they are tried."""
MARGIN = 1e-4
"""Largest gap between the reference's two candidates, in float32, that excuses a different token."""
MAX_UNDECIDED = 0.05
"""Share of the tokens that may stand in undecided places."""
PROMPT_LENGTHS = (1, 3, 5, 8, 16, 17, 33, 40)
"""Ragged, on both sides of the sizes of blocks, chunks and tiles."""
NUM_OUTPUT = 32
GREEDY = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0, ignore_eos=True)
SCORING = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=1)

Output = tuple[list[int], list[int]]
"""A prompt and what was generated after it."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What came of reading the outputs of a set with everything off."""

    num_tokens: int
    num_undecided: int
    margin: float
    problem: str = ""
    """The first place that nothing excuses; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.num_undecided} of {self.num_tokens} tokens in places closer than {self.margin:.2g}"


def compare_forced(model: str, plugins: Plugins, dtype: str, classes: Iterable[type] = ()) -> Forced:
    """Generate with a set of plugins and read it with none, in one dtype. Raises SwitchgearError where it refuses."""
    outputs = generated(model, plugins, dtype, tuple(classes))
    scores = read(model, outputs, dtype)
    margin = MARGIN if dtype == "float32" else noise(scores, read(model, outputs, "float32"))
    return judged(outputs, scores, margin)


def generated(model: str, plugins: Plugins, dtype: str, classes: tuple[type, ...]) -> list[Output]:
    """What the set says to ragged prompts, on a cold cache and on a warm one."""
    with LLM(model, dtype=dtype, plugins=plugins, plugin_classes=classes_of(plugins, classes), max_num_seqs=8) as llm:
        generator = np.random.default_rng(0)
        prompts = [generator.integers(0, llm.tokenizer.vocab_size, length).tolist() for length in PROMPT_LENGTHS]
        return [
            (prompt, list(result.token_ids))
            for _ in ("cold", "warm")
            for prompt, result in zip(prompts, llm.generate(prompts, GREEDY), strict=True)
        ]


def read(model: str, outputs: Sequence[Output], dtype: str) -> list[list[PositionLogprobs]]:
    """What everything-off thinks of each token of each output."""
    with LLM(model, dtype=dtype, plugins={}, max_num_seqs=8) as llm:
        return read_with(llm, outputs)


def read_with(llm: LLM, outputs: Sequence[Output]) -> list[list[PositionLogprobs]]:
    """What an engine thinks of each token of each output."""
    results = llm.generate([[*prompt, *output] for prompt, output in outputs], SCORING)
    scores = []
    for (prompt, _), result in zip(outputs, results, strict=True):
        positions = (result.prompt_logprobs or ())[len(prompt) :]
        scores.append([position for position in positions if position is not None])
    return scores


def noise(scores: list[list[PositionLogprobs]], exact: list[list[PositionLogprobs]]) -> float:
    """What rounding does to the gap between two candidates: twice what it does to one."""
    gaps = (
        abs(one.chosen.logprob - other.chosen.logprob)
        for some, others in zip(scores, exact, strict=True)
        for one, other in zip(some, others, strict=True)
    )
    return 2 * max(gaps)


def judged(outputs: Sequence[Output], scores: list[list[PositionLogprobs]], margin: float) -> Forced:
    num_tokens = sum(len(output) for _, output in outputs)
    num_undecided = 0
    for (prompt, output), positions in zip(outputs, scores, strict=True):
        for place, (token, position) in enumerate(zip(output, positions, strict=True)):
            [best] = position.top
            if best.token_id == token:
                continue
            gap = best.logprob - position.chosen.logprob
            if gap >= margin:
                where = f"after a prompt of {len(prompt)} tokens, position {place}"
                text = f"{where}: token {token}, everything-off has {best.token_id}, ahead by {gap:.3g}"
                return Forced(num_tokens, num_undecided, margin, text)
            num_undecided += 1
    problem = ""
    if num_undecided > MAX_UNDECIDED * num_tokens:
        problem = f"{num_undecided} of {num_tokens} tokens stand where everything-off is undecided: too many for chance"
    return Forced(num_tokens, num_undecided, margin, problem)
