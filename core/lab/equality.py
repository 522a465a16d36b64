"""Does an arm say what everything-off says? Its own outputs, read by an engine with no plugin at all.

Where everything-off's best token is another one, its two candidates must be closer than its rounding noise, and such
places must be few: `core/testing/teacher_forced.py`, with the workload of an ablation for prompts. Runs in a process of
its own. Requests are greedy, so a `distribution` class has to keep the tokens too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..config import Config
from ..records import Equivalence
from ..testing.equivalence import LOGPROB_TOLERANCE
from ..testing.teacher_forced import MARGIN, Output, judged, noise, read_with
from .agenda import chains_of
from .prompt_ids import id_range
from .workload import ALONE, Workload

if TYPE_CHECKING:
    from ..gateway.llm import LLM
    from ..gateway.results import PositionLogprobs

NUM_SEQS = 8
"""Sequences that are read at once."""
PERPLEXITY = "perplexity"
"""The one measure of lossy plugins that can be taken of any outputs."""

Scores = list[list["PositionLogprobs"]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an arm said to one request."""

    index: int
    """Of its `Ask` in the workload."""
    token_ids: tuple[int, ...]
    text: str = ""
    finish_reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """The answers of one run of an arm, and what the arm promises of them."""

    arm: str
    config: Config
    equivalence: Equivalence
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one check of an arm."""

    arm: str
    equivalence: str
    num_tokens: int
    num_undecided: int
    margin: float
    holds: bool | None
    problem: str = ""
    measure: str = ""
    value: float | None = None
    bound: float | None = None


def check(off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int = 0) -> list[Verdict]:
    """One verdict for each of `said`.

    off: the config of everything-off, in the dtype of the arms. max_tokens: prompt and output tokens to read of each
    arm, at least one request: of the same requests in all of them, in an order by `seed`. Raises SwitchgearError.
    """
    with reader(off) as llm:
        dtype = llm.plan.dtype
        order = np.random.default_rng([seed, 0xE9]).permutation(len(workload.asks)).tolist()
        chosen = [some(prompts_of(llm, workload, each.answers), order, max_tokens, llm) for each in said]
        texts = sorted({(tuple(prompt), tuple(output)) for outputs in chosen for prompt, output in outputs})
        outputs = [(list(prompt), list(output)) for prompt, output in texts]
        scores = read_with(llm, outputs)
    margin = {"float64": LOGPROB_TOLERANCE, "float32": MARGIN}.get(dtype, 0.0)
    if not margin:
        with reader(in_dtype(off, "float32")) as llm:
            margin = own_noise(outputs, scores, read_with(llm, outputs))
    by_text = {text: score for text, score in zip(texts, scores, strict=True)}
    return [
        verdict_of(each, workload, its, [by_text[tuple(one), tuple(two)] for one, two in its], margin)
        for each, its in zip(said, chosen, strict=True)
    ]


def verdict_of(said: Said, workload: Workload, outputs: list[Output], scores: Scores, margin: float) -> Verdict:
    forced = judged(outputs, scores, margin)
    problem = complaint(workload, said.answers)
    about = said.arm, str(said.equivalence), forced.num_tokens, forced.num_undecided, margin
    if said.equivalence.kind != "lossy":
        problem = problem or forced.problem
        return Verdict(*about, holds=not problem, problem=problem)
    measure, bound = said.equivalence.measure, said.equivalence.bound
    if problem or PERPLEXITY not in measure:
        problem = problem or f"{measure} is not measured by this command, see the plugin's page"
        return Verdict(*about, False if complaint(workload, said.answers) else None, problem, measure, None, bound)
    with reader(said.config) as llm:
        own = read_with(llm, outputs)
    value = abs(perplexity(own) - perplexity(scores))
    problem = f"{measure} is {value:.3g}, promised is at most {bound:g}" if value > bound else ""
    return Verdict(*about, not problem, problem, measure, value, bound)


def complaint(workload: Workload, answers: Sequence[Answer]) -> str:
    """What is wrong with answers that nobody has to read; empty if nothing is."""
    failed = [answer for answer in answers if answer.error]
    if failed:
        return f"{len(failed)} of {len(workload.asks)} requests failed, the first with: {failed[0].error}"
    if len(answers) < len(workload.asks):
        return f"{len(workload.asks) - len(answers)} of {len(workload.asks)} requests were not answered"
    for answer in answers:
        ask = workload.asks[answer.index]
        # a text may end at the longest sequence there is
        if ask.segments and ask.ignore_eos and len(answer.token_ids) != ask.num_output:
            return f"request {answer.index} got {len(answer.token_ids)} tokens, {ask.num_output} were asked for"
    return ""


# -- reading --------------------------------------------------------------------------------------------------------


def reader(config: Config) -> LLM:
    """An engine for a few long sequences at once; KV is what the machine gives."""
    from ..gateway.llm import LLM

    engine = msgspec.structs.replace(config.engine, max_num_seqs=NUM_SEQS, kv_bytes=None)
    return LLM.from_config(msgspec.structs.replace(config, engine=engine))


def in_dtype(config: Config, dtype: str) -> Config:
    return msgspec.convert(
        {**msgspec.to_builtins(config), "model": {"name": config.model.name, "dtype": dtype}}, Config
    )


def prompts_of(llm: LLM, workload: Workload, answers: Sequence[Answer]) -> dict[int, Output]:
    """The prompt of each request that was answered, as it was sent, and what was said to it."""
    by_index = {answer.index: answer for answer in answers}
    return {
        index: (prompt, list(by_index[index].token_ids))
        for chain in chains_of(workload)
        for index, prompt in chain_prompts(llm, workload, chain, by_index)
    }


def chain_prompts(
    llm: LLM, workload: Workload, chain: Iterable[int], answers: Mapping[int, Answer]
) -> Iterator[tuple[int, list[int]]]:
    """One conversation, or one request alone: up to the first that was not answered."""
    ids = id_range(llm._engine.parts.vocab_size)
    token_ids: list[int] = []
    messages: list[dict[str, str]] = []
    for index in chain:
        ask, answer = workload.asks[index], answers.get(index)
        if answer is None or answer.error or not answer.token_ids:
            return
        if ask.text and ask.conversation == ALONE:
            yield index, llm.prompts.encode(ask.text).tolist()
        elif ask.text:
            messages.append({"role": "user", "content": ask.text})
            yield index, llm.prompts.encode_chat(messages)[0].tolist()
            messages.append({"role": "assistant", "content": answer.text})
        else:
            token_ids += ask.token_ids(ids.first, ids.end).tolist()
            yield index, list(token_ids)
            token_ids += answer.token_ids


def some(prompts: Mapping[int, Output], order: Sequence[int], max_tokens: int, llm: LLM) -> list[Output]:
    """Outputs in this order of requests, up to so many tokens; one that is as long as can be loses its last token."""
    chosen: list[Output] = []
    num_tokens = 0
    for index in order:
        if index not in prompts:
            continue
        prompt, output = prompts[index]
        output = output[: llm.plan.max_model_len - 1 - len(prompt)]
        num_tokens += len(prompt) + len(output)
        if chosen and num_tokens > max_tokens:
            break
        if output:
            chosen.append((prompt, output))
    return chosen


def own_noise(outputs: Sequence[Output], scores: Scores, exact: Scores) -> float:
    """Everything-off's rounding noise, where it would say the token itself: a broken arm widens no margin."""
    kept, kept_exact = [], []
    for (_, output), some_scores, others in zip(outputs, scores, exact, strict=True):
        for token, one, other in zip(output, some_scores, others, strict=True):
            if one.top[0].token_id == token or other.top[0].token_id == token:
                kept.append(one)
                kept_exact.append(other)
    return max(MARGIN, noise([kept], [kept_exact])) if kept else MARGIN


def perplexity(scores: Scores) -> float:
    """Of all tokens: the exponential of the mean of what each costs."""
    costs = [-position.chosen.logprob for positions in scores for position in positions]
    return math.exp(math.fsum(costs) / len(costs))
