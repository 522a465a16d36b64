"""The k largest of rows of a vocabulary, by `native_cpu` against PyTorch: alone, and within all that sampling does.

Both arms take the same rows in turn, and new ones in each run: a processor learns where the few large numbers of a row
that it sees again stand, and is then twice as fast with them. Times are medians; the spread is of the runs' own ratios,
without the lowest and the highest tenth. On one thread the thread's own time is taken, which a busy machine does not
change much. Logits are normal, with a deviation of 3: nine tenths of the mass are on some 2,000 tokens, so that
top_p = 0.9 looks twice, the second time at more than there is a kernel for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from switchgear import SamplingParams
from switchgear.core.engine.law import NUM_CANDIDATES, weights_of
from switchgear.core.engine.sampler import Sampler
from switchgear.core.model import ops
from switchgear.kernels.cpu.argmax import argmax
from switchgear.kernels.cpu.library import native
from switchgear.kernels.cpu.top_k import top_k

ARMS: dict[str, ops.TopK] = {"torch": ops.top_k, "native": top_k}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=49152, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=31, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = list(measured(args))
    if args.json:
        print(json.dumps({"level": native().level_name, "threads": args.threads, "points": found}))
        return
    print(f"{native().level_name}, {args.threads} threads, a vocabulary of {args.vocabulary}, microseconds")
    print("| | rows | PyTorch | native | ratio | spread |\n|---|---|---|---|---|---|")
    for point in found:
        print(
            "| {point} | {rows} | {torch:,.0f} | {native:,.0f} | {ratio:.2f} | {low:.2f}-{high:.2f} |".format(**point)
        )


def scores(k: int, logits: torch.Tensor) -> Callable[[ops.TopK], object]:
    logprobs = logits.log_softmax(-1)
    return lambda form: form(logprobs, k)


def laws(k: int, logits: torch.Tensor) -> Callable[[ops.TopK], object]:
    weights = weights_of(logits, torch.ones(len(logits)))
    return lambda form: form(weights, k)


def sampling(options: Mapping[str, Any], logits: torch.Tensor) -> Callable[[ops.TopK], object]:
    """A token for each row, and its log probabilities if the options ask for them."""
    rows, nothing = np.arange(len(logits)), np.zeros(len(logits), dtype=np.int64)
    samplers = {form: Sampler(logits.shape[1], frozenset(), argmax, form) for form in ARMS.values()}
    for sampler in samplers.values():
        for row in rows.tolist():
            sampler.add(row, SamplingParams(**options), seed=row, child=0, tokens=lambda: (np.array([1]), 1))

    def run(form: ops.TopK) -> object:
        sampler = samplers[form]
        sampled = sampler.sample(logits, rows, nothing, [nothing[:0]] * len(rows))
        return sampler.score(logits, rows, sampled.token_ids)

    return run


POINTS: Mapping[str, Callable[[torch.Tensor], Callable[[ops.TopK], object]]] = {
    "scores, k = 1": partial(scores, 1),
    "scores, k = 5": partial(scores, 5),
    "scores, k = 20": partial(scores, 20),
    f"laws, k = {NUM_CANDIDATES}": partial(laws, NUM_CANDIDATES),
    "sampling, top_k = 50": partial(sampling, {"top_k": 50}),
    "sampling, top_p = 0.9": partial(sampling, {"top_p": 0.9}),
    "greedy, logprobs = 5": partial(sampling, {"temperature": 0, "logprobs": 5}),
}


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    for num_rows in args.rows:
        for point, prepared in POINTS.items():
            times: dict[str, list[float]] = {name: [] for name in ARMS}
            for run in range(args.runs):
                once = prepared(torch.randn(num_rows, args.vocabulary, generator=generator) * 3)
                for name in ARMS if run % 2 else reversed(ARMS):
                    start = clock()
                    once(ARMS[name])
                    times[name].append(1e6 * (clock() - start))
            ratios = sorted(one / other for one, other in zip(*times.values(), strict=True))
            tenth = len(ratios) // 10
            medians = {name: median(each) for name, each in times.items()}
            yield {
                **{"point": point, "rows": num_rows, **medians, "ratio": medians["torch"] / medians["native"]},
                **{"low": ratios[tenth], "high": ratios[-1 - tenth]},
            }


if __name__ == "__main__":
    main()
