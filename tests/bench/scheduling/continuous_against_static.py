"""Continuous against static batching: output tokens a second at eight slots, everything else equal.

The mix is Orca's (OSDI'22) with a quarter of its lengths: prompts of U(32, 512) / 4 and outputs of U(1, 128) / 4
tokens, forced. A static batch ends with its longest output, so its slots idle while a continuous one refills them.

Prediction: in decode steps the ratio is that of the longest of eight outputs to the mean one, 1.76. The prompts take
the same time on both sides and draw it towards 1; at least 1.5 is asked. How much they draw is shown by outputs of one
token, whose time is taken off for the ratio of the decodes alone. Where all outputs have the same length nothing is
won: 1.0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import measure
import numpy as np
from measure import Plugins, Report, Target, ratio, spread
from switchgear import LLM, SamplingParams

PLUGINS: Mapping[str, Plugins] = {"static": {}, "continuous": {"continuous_batching": {}}}
PROMPT_LENGTHS, OUTPUT_LENGTHS = (8, 128), (1, 32)
TARGET = 1.5
EQUAL = (0.9, 1.1)


def main() -> int:
    parser = measure.options(__doc__, num_runs=5, has_model=True)
    parser.add_argument("--requests", type=int, default=128, help="a multiple of --slots (%(default)s)")
    parser.add_argument("--slots", type=int, default=8, help="sequences at once (%(default)s)")
    parser.add_argument("--on", action="append", default=[], metavar="NAME", help="a plugin on both sides")
    args = parser.parse_args()
    measure.require_quiet(args)

    shared: Plugins = {name: {} for name in args.on}
    llms = {name: open_arm(args, {**plugins, **shared}) for name, plugins in PLUGINS.items()}
    generator = np.random.default_rng(0)
    lengths = generator.integers(*PROMPT_LENGTHS, args.requests, endpoint=True).tolist()
    vocab_size = llms["static"].tokenizer.vocab_size
    prompts = [measure.random_ids(generator, length, vocab_size) for length in lengths]
    mixes = {
        "mixed": generator.integers(*OUTPUT_LENGTHS, args.requests, endpoint=True).tolist(),
        "equal": [sum(OUTPUT_LENGTHS) // 2] * args.requests,
        "one token": [1] * args.requests,
    }

    rows: list[tuple[object, ...]] = []
    seconds = {}
    for mix, outputs in mixes.items():
        arms: dict[str, Callable[[int], float]] = {
            name: partial(seconds_to_serve, llm, prompts, outputs) for name, llm in llms.items()
        }
        seconds[mix] = measure.in_turn(arms, args.runs)
        for name, runs in seconds[mix].items():
            rows.append((mix, name, spread(runs), spread([sum(outputs) / each for each in runs])))
    static, continuous = (np.array([seconds[mix][name] for mix in mixes]) for name in PLUGINS)
    mixed, equal, prefill = range(len(mixes))
    targets = [
        Target("tokens/s, mixed: continuous over static", ratio(static[mixed], continuous[mixed]), at_least=TARGET),
        Target("tokens/s, equal: continuous over static", ratio(static[equal], continuous[equal]), *EQUAL),
    ]
    decodes = ratio(static[mixed] - static[prefill], continuous[mixed] - continuous[prefill])
    notes = (
        f"longest of {args.slots} outputs over mean: {bound(mixes['mixed'], args.slots):.2f}",
        f"of the static time of the mix, prompts take {np.median(static[prefill] / static[mixed]):.0%}",
        f"mixed, without them: {decodes}",
    )
    plans = {name: llm.plan.hash for name, llm in llms.items()}
    columns = ("outputs", "batching", "seconds", "output tokens/s")
    return Report("Continuous against static batching", columns, rows, targets, plans, notes).show(args)


def open_arm(args: argparse.Namespace, plugins: Plugins) -> LLM:
    longest = PROMPT_LENGTHS[1] + OUTPUT_LENGTHS[1]
    return measure.open_llm(
        args,
        plugins,
        kv_tokens=args.slots * longest,
        max_num_seqs=args.slots,
        max_step_tokens=2048,
        max_model_len=longest,
    )


def seconds_to_serve(llm: LLM, prompts: list[list[int]], outputs: list[int], run: int) -> float:
    """All requests at once, from the first to the last."""
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in outputs]
    start = time.perf_counter()
    results = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    assert [len(result.token_ids) for result in results] == outputs
    return seconds


def bound(outputs: list[int], num_slots: int) -> float:
    """What idle slots cost static batching: the longest output of each batch over the mean of all."""
    batches = np.array(outputs).reshape(-1, num_slots)
    return float(batches.max(axis=1).mean() / batches.mean())


if __name__ == "__main__":
    sys.exit(main())
