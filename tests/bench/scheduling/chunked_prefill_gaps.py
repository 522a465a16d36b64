"""Chunked prefill: how long running outputs stand still while a long prompt arrives.

Eight sequences decode when a prompt of 2,000 tokens comes. Without chunks they wait for all of it; with chunks every
step computes one token for each of them and 128 tokens of the prompt.

Prediction (Sarathi-Serve, OSDI'24, 2403.02310): the largest gap between two tokens is at least 5 times smaller, and the
long prompt's own time to first token at most 1.4 times longer, since each chunk reads the KV before it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import measure
import numpy as np
from measure import Report, Target, ratio, spread
from switchgear import LLM, SamplingParams

DECODE_PROMPT = 64
NUM_STEPS_BEFORE = 8
"""Steps of decode alone before the prompt arrives, and after it has its token."""
GAP_TARGET, TTFT_TARGET = 5.0, 1.4
KV_BYTES = 1 << 29


class Stall(NamedTuple):
    """Milliseconds."""

    usual_gap: float
    """Between two tokens before the prompt arrived."""
    largest_gap: float
    """From then on."""
    ttft: float
    """Of the long prompt."""


def main() -> int:
    parser = measure.options(__doc__, num_runs=7, has_model=True)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt (%(default)s)")
    parser.add_argument("--chunk", type=int, default=128, help="its tokens in one step (%(default)s)")
    parser.add_argument("--decodes", type=int, default=8, help="sequences that decode (%(default)s)")
    args = parser.parse_args()
    measure.require_quiet(args)

    without = {"continuous_batching": {}, "paged_kv": {}}
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


def open_arm(args: argparse.Namespace, plugins: dict[str, dict[str, int]]) -> LLM:
    return measure.open_llm(
        args,
        plugins,
        max_num_seqs=args.decodes + 1,
        max_step_tokens=args.prompt + args.decodes,
        max_model_len=args.prompt + 1,
        kv_bytes=KV_BYTES,
    )


def stall(llm: LLM, args: argparse.Namespace, run: int) -> Stall:
    """Let a long prompt arrive while others decode; the first of them is watched, since all move together."""
    generator = np.random.default_rng(run)
    num_chunks = -(-args.prompt // args.chunk)
    greedy = {"temperature": 0, "ignore_eos": True}
    num_tokens = num_chunks + 3 * NUM_STEPS_BEFORE
    vocab_size = llm.tokenizer.vocab_size
    prompts = [measure.random_ids(generator, DECODE_PROMPT, vocab_size) for _ in range(args.decodes)]
    decodes = [llm.stream(prompt, SamplingParams(max_tokens=num_tokens, **greedy)) for prompt in prompts]
    watched = decodes[0]
    before = [time.perf_counter() for _ in zip(range(1 + NUM_STEPS_BEFORE), watched, strict=False)]
    long_prompt = llm.stream(
        measure.random_ids(generator, args.prompt, vocab_size), SamplingParams(max_tokens=1, **greedy)
    )
    after = before[-1:] + [time.perf_counter() for _ in watched]
    result = [chunk.result for chunk in long_prompt][-1]
    for decode in decodes:
        for _ in decode:
            pass
    assert result is not None and not result.error
    ttft = result.timing.ttft
    assert after[0] + ttft < after[-1], "the watched output ended before the prompt had its token"
    return Stall(1e3 * float(np.median(np.diff(before))), 1e3 * float(np.diff(after).max()), 1e3 * ttft)


if __name__ == "__main__":
    sys.exit(main())
