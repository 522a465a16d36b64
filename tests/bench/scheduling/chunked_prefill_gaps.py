"""Chunked prefill: how long running outputs stand still while a long prompt arrives.

Eight sequences decode when a prompt of 2,000 tokens comes. Without chunks they wait for all of it; with chunks every
step computes one token for each of them and 128 tokens of the prompt.

Prediction (Sarathi-Serve, OSDI'24, 2403.02310): the largest gap between two tokens is at least 5 times smaller, and the
long prompt's own time to first token at most 1.4 times longer, since each chunk reads the KV before it again.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import measure
import numpy as np
from measure import Plugins, Report, Target, ratio, spread
from switchgear import LLM, SamplingParams
from switchgear.core.gateway.results import Chunk
from token_times import TokenTimes

DECODE_PROMPT = 16
NUM_STEPS_BEFORE = 8
"""Steps of decodes alone before the prompt arrives."""
SLACK = 4
"""Tokens that every output has left when the prompt has its own."""
GAP_TARGET, TTFT_TARGET = 5.0, 1.4


class Stall(NamedTuple):
    """Milliseconds."""

    usual_gap: float
    """Between two tokens before the prompt arrived."""
    largest_gap: float
    """From then on."""
    ttft: float
    """Of the long prompt."""


def main() -> int:
    parser = measure.options(__doc__, num_runs=5, has_model=True)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt (%(default)s)")
    parser.add_argument("--chunk", type=int, default=128, help="its tokens in one step (%(default)s)")
    parser.add_argument("--decodes", type=int, default=8, help="sequences that decode (%(default)s)")
    args = parser.parse_args()
    measure.require_quiet(args)

    without: Plugins = {"continuous_batching": {}, "paged_kv": {}}
    budget = {"max_num_batched_tokens": args.chunk + args.decodes}
    llms = {
        "whole prompt": open_arm(args, without),
        "chunks": open_arm(args, {**without, "chunked_prefill": budget}),
    }
    arms: dict[str, Callable[[int], Stall]] = {name: partial(stall, llm, args) for name, llm in llms.items()}
    measured = measure.in_turn(arms, args.runs)
    rows: list[tuple[object, ...]] = [
        (name, *(spread(column) for column in zip(*stalls, strict=True))) for name, stalls in measured.items()
    ]
    whole, chunks = (list(zip(*measured[name], strict=True)) for name in llms)
    targets = [
        Target("largest gap, whole over chunks", ratio(whole[1], chunks[1]), at_least=GAP_TARGET),
        Target("time to first token, chunks over whole", ratio(chunks[2], whole[2]), at_most=TTFT_TARGET),
    ]
    plans = {name: llm.plan.hash for name, llm in llms.items()}
    columns = ("ms", "usual gap", "largest gap", "TTFT of the prompt")
    return Report("Chunked prefill beside decodes", columns, rows, targets, plans).show(args)


def open_arm(args: argparse.Namespace, plugins: Plugins) -> LLM:
    return measure.open_llm(
        args,
        {**plugins, TokenTimes.name: {}},
        kv_tokens=2 * args.prompt + args.decodes * (DECODE_PROMPT + args.prompt // args.chunk + 64),
        plugin_classes=(TokenTimes,),
        max_num_seqs=args.decodes + 1,
        max_step_tokens=args.prompt + args.decodes,
        max_model_len=args.prompt + 1,
    )


def stall(llm: LLM, args: argparse.Namespace, run: int) -> Stall:
    """Let a long prompt arrive while others decode."""
    generator = np.random.default_rng(run)
    # the first decode to start gets a token in every step: while the others start, and while the prompt is computed
    num_tokens = args.decodes + NUM_STEPS_BEFORE - (-args.prompt // args.chunk) + SLACK
    decodes = [start(llm, DECODE_PROMPT, num_tokens, generator) for _ in range(args.decodes)]
    for _ in range(NUM_STEPS_BEFORE):
        next(decodes[-1])
    exhaust(start(llm, args.prompt, 1, generator), *decodes)
    *decoded, (arrival, first_token) = cast(list[list[float]], llm.control(TokenTimes.name, "take"))
    assert all(times[-1] > first_token for times in decoded), "an output ended before the prompt had its token"
    usual = np.median(np.diff([time for time in decoded[0] if time < arrival])[-NUM_STEPS_BEFORE:])
    largest = max(end - begin for times in decoded for begin, end in pairwise(times[1:]) if end > arrival)
    return Stall(1e3 * float(usual), 1e3 * largest, 1e3 * (first_token - arrival))


def start(llm: LLM, length: int, num_tokens: int, generator: np.random.Generator) -> Iterator[Chunk]:
    """A stream that has its first token."""
    prompt = measure.random_ids(generator, length, llm.tokenizer.vocab_size)
    stream = llm.stream(prompt, SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True))
    next(stream)
    return stream


def exhaust(*streams: Iterator[Chunk]) -> None:
    for stream in streams:
        deque(stream, maxlen=0)


if __name__ == "__main__":
    sys.exit(main())
