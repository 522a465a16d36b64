"""Continuous against static batching: output tokens a second at eight slots, everything else equal.

The mix is Orca's (OSDI'22) with a quarter of its lengths: prompts of U(32, 512) / 4 and outputs of U(1, 128) / 4 tokens,
forced. A static batch ends with its longest output, so its slots idle while a continuous one refills them.

Prediction: saturated, the ratio is that of the longest of eight outputs to the mean one, 1.76; at least 1.5 is asked.
Where all outputs have the same length nothing is left to win: 1.0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import measure
import numpy as np
from measure import Report, Target, ratio, spread
from switchgear import LLM, SamplingParams

PLUGINS: dict[str, dict[str, dict[str, object]]] = {"static": {}, "continuous": {"continuous_batching": {}}}
PROMPT_LENGTHS, OUTPUT_LENGTHS = (8, 128), (1, 32)
TARGET = 1.5
EQUAL = (0.95, 1.05)
KV_BYTES = 1 << 29


def main() -> int:
    parser = measure.options(__doc__, num_runs=5, has_model=True)
    parser.add_argument("--requests", type=int, default=128, help="a multiple of --slots (%(default)s)")
    parser.add_argument("--slots", type=int, default=8, help="sequences at once (%(default)s)")
    args = parser.parse_args()
    measure.require_quiet(args)

    llms = {name: open_arm(args, plugins) for name, plugins in PLUGINS.items()}
    generator = np.random.default_rng(0)
    lengths = generator.integers(*PROMPT_LENGTHS, args.requests, endpoint=True).tolist()
    vocab_size = llms["static"].tokenizer.vocab_size
    prompts = [measure.random_ids(generator, length, vocab_size) for length in lengths]
    mixes = {
        "mixed": generator.integers(*OUTPUT_LENGTHS, args.requests, endpoint=True).tolist(),
        "equal": [sum(OUTPUT_LENGTHS) // 2] * args.requests,
    }

    rows: list[tuple[object, ...]] = []
    ratios = {}
    for mix, outputs in mixes.items():
        arms: dict[str, Callable[[int], float]] = {
            name: partial(tokens_per_second, llm, prompts, outputs) for name, llm in llms.items()
        }
        measured = measure.in_turn(arms, args.runs)
        ratios[mix] = ratio(measured["continuous"], measured["static"])
        rows += [(f"{mix} outputs", name, spread(values)) for name, values in measured.items()]
    targets = [
        Target("continuous over static, mixed outputs", ratios["mixed"], at_least=TARGET),
        Target("continuous over static, equal outputs", ratios["equal"], *EQUAL),
    ]
    note = f"{args.requests} requests; longest of {args.slots} over mean: {bound(mixes['mixed'], args.slots):.2f}"
    plans = {name: llm.plan.hash for name, llm in llms.items()}
    columns = ("mix", "batching", "output tokens/s")
    return Report("Continuous against static batching", columns, rows, targets, plans, (note,)).show(args)


def open_arm(args: argparse.Namespace, plugins: dict[str, dict[str, object]]) -> LLM:
    return measure.open_llm(
        args,
        plugins,
        max_num_seqs=args.slots,
        max_step_tokens=2048,
        max_model_len=PROMPT_LENGTHS[1] + OUTPUT_LENGTHS[1],
        kv_bytes=KV_BYTES,
    )


def tokens_per_second(llm: LLM, prompts: list[list[int]], outputs: list[int], run: int) -> float:
    """All requests at once, from the first to the last."""
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in outputs]
    start = time.perf_counter()
    results = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    assert [len(result.token_ids) for result in results] == outputs
    return sum(outputs) / seconds


def bound(outputs: list[int], num_slots: int) -> float:
    """What idle slots cost static batching: the longest output of each batch over the mean of all."""
    batches = np.array(outputs).reshape(-1, num_slots)
    return float(batches.max(axis=1).mean() / batches.mean())


if __name__ == "__main__":
    sys.exit(main())
