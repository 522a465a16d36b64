"""The requests that every set of plugins is tried on, and what came of them.

One of each kind that has its own way through the engine: ragged prompts, shared and fully cached prefixes, several
outputs, every way to sample and to stop, late arrivals, callers that go away. The same objects for all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..gateway.live import LiveRequest
from ..gateway.llm import LLM
from ..gateway.results import Chunk, Result
from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload."""

    name: str
    prompt: str | tuple[int, ...]
    params: SamplingParams
    arrival: int = 0
    """The step before which it comes."""
    abort_after: int | None = None
    """The caller goes away after that many tokens of the first output."""


@dataclass(slots=True)
class Answer:
    """What the caller of one request got."""

    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    """Of the first output, as they were streamed."""
    texts: list[str] = field(default_factory=list)
    """Per output, as it was streamed."""
    result: Result | None = None
    """None where the caller went away."""

    def take(self, chunk: Chunk) -> None:
        self.texts[chunk.index] += chunk.text
        if chunk.index == 0:
            self.token_ids += chunk.token_ids


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the engine's bounds, and a workload."""

    name: str
    model: Mapping[str, Any]
    """Its family, if that is another than llama, and entries of its config."""
    engine: Mapping[str, Any]
    """Options of the `[engine]` section, but for the KV pool."""
    num_kv_tokens: int
    """The KV pool in tokens, the same for every set: what is no multiple of a set's block size is lost to it."""
    asks: Sequence[Ask]


def run_workload(llm: LLM, asks: Sequence[Ask]) -> list[Answer]:
    """Serve all requests at once, each to a caller of its own; answers stand in the order of the requests.

    Step by step through the gateway's own parts: `generate` has no callers that leave, and streams start one by one.
    """
    answers = [Answer(ask, texts=[""] * ask.params.n) for ask in asks]
    still_to_come = sorted(answers, key=lambda answer: answer.ask.arrival)
    inside: list[tuple[Answer, LiveRequest]] = []
    num_steps = 0
    while still_to_come or inside:
        while still_to_come and still_to_come[0].ask.arrival <= num_steps:
            answer = still_to_come.pop(0)
            prompt = answer.ask.prompt
            inside.append((answer, llm._submit(*llm._encode(prompt), answer.ask.params)))
        llm._pump()
        inside = [(answer, live) for answer, live in inside if stays(answer, live, llm)]
        num_steps += 1
    return answers


def stays(answer: Answer, live: LiveRequest, llm: LLM) -> bool:
    """Hand over what there is; False when the output is over or its caller leaves."""
    while live.chunks:
        answer.take(live.chunks.popleft())
    limit = answer.ask.abort_after
    if live.is_done:
        answer.result = live.result()
    elif limit is None or len(answer.token_ids) < limit:
        return True
    llm._leave(live)
    return False


# -- the standard workload ------------------------------------------------------------------------------------------


def tokens(length: int, start: int = 0) -> tuple[int, ...]:
    """A prompt of plain tokens; two of them with equal `start` begin alike."""
    return tuple(3 + (start * 31 + 7 * index + index * index // 5) % 500 for index in range(length))


SHARED = tokens(20, start=1)


def greedy(max_tokens: int, prompt_logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, prompt_logprobs=prompt_logprobs)


ASKS = (
    Ask("greedy", tokens(23, 2), greedy(12)),
    Ask("one token", tokens(1, 3), greedy(9)),
    Ask("shared prefix", SHARED + tokens(5, 4), greedy(10)),
    Ask("sampled on a shared prefix", SHARED + tokens(9, 5), SamplingParams(max_tokens=12, seed=1, top_p=0.9)),
    Ask("nothing but the shared prefix", SHARED, greedy(8)),
    Ask("long", tokens(60, 6), greedy(10)),
    Ask("three outputs", tokens(14, 7), SamplingParams(max_tokens=11, seed=7, n=3, top_k=40)),
    Ask("log probabilities", tokens(9, 8), SamplingParams(max_tokens=7, n=2, seed=5, logprobs=3)),
    Ask(
        "stop strings",
        "The switch is a small part",
        SamplingParams(max_tokens=24, seed=3, min_tokens=4, stop=["e", "in", " s"]),
    ),
    Ask("stop token ids", tokens(11, 9), SamplingParams(max_tokens=24, seed=4, stop_token_ids=list(range(3, 51)))),
    Ask(
        "penalties and bias",
        tokens(18, 10),
        SamplingParams(
            max_tokens=12,
            min_tokens=3,
            seed=11,
            min_p=0.02,
            repetition_penalty=1.3,
            frequency_penalty=0.5,
            presence_penalty=0.2,
            logit_bias={17: 4.0, 18: -100.0},
        ),
    ),
    Ask("prompt scored", tokens(17, 11), greedy(5, prompt_logprobs=2)),
    Ask("caller leaves", tokens(26, 12), greedy(40), abort_after=3),
    Ask("caller of two leaves", tokens(13, 13), SamplingParams(max_tokens=30, seed=2, n=2), abort_after=2),
    Ask("late", SHARED + tokens(5, 4), greedy(10), arrival=6),
    Ask("late and scored", SHARED + tokens(3, 5), greedy(6, prompt_logprobs=0), arrival=8),
    Ask("no seed", "Queues, blocks, drafts", SamplingParams(max_tokens=12), arrival=9),
)

CASES = (
    Case(
        "roomy",
        model={},
        engine={"max_num_seqs": 8, "max_step_tokens": 56, "max_model_len": 96},
        num_kv_tokens=8 * 96,
        asks=ASKS,
    ),
    Case(
        "tight",
        model={"num_key_value_heads": 1, "tie_word_embeddings": True, "num_hidden_layers": 3},
        engine={"max_num_seqs": 8, "max_step_tokens": 256, "max_model_len": 72},
        num_kv_tokens=2 * 72,
        asks=ASKS,
    ),
    Case(
        "local and global",
        model={"family": "gemma3", "num_key_value_heads": 1, "sliding_window": 7},
        engine={"max_num_seqs": 8, "max_step_tokens": 72, "max_model_len": 72},
        num_kv_tokens=204,
        asks=ASKS,
    ),
)
"""The same requests with room for all of them; in so little KV that blocks run out and rows are preempted; and in
little KV again, where every other layer sees a window that all of them outgrow."""
