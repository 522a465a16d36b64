"""Sarathi-Serve (OSDI'24, 2403.02310): what chunked prefill gains in capacity under a strict and a relaxed objective.

Engines that differ in one switch, `chunked_prefill`, serve the lengths of the Azure conversation trace, arriving at
random, in virtual time, with the step times that DistServe published for OPT-13B on an A100. Capacity, as in the paper:
the highest rate at which 99 % of all gaps between tokens keep a bound and the median wait in the queue is 2 s at most.
Strict: 100 ms, five decode steps. Relaxed: 1.1 s.

Expected (a sketch of a simulator on the same step times): with a budget of 256 tokens 4.7 times the capacity under the
strict objective and 1.06 times under the relaxed one. The gain has to vanish there: what chunks buy is short gaps, not
speed. It has to vanish as well under the strict objective with a budget of 2,048, whose steps take longer than that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from experiment import Expected, Result, add_options, highest_rate
from published import KV_TOKENS, opt_13b_a100
from switchgear.core.config import build_config
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.simulate import simulate
from switchgear.core.lab.traces import from_trace

TRACE = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
BASE: Mapping[str, Mapping[str, object]] = {"continuous_batching": {}, "paged_kv": {}}
WHOLE, SMALL, LARGE = "whole prompts", "chunks of 256", "chunks of 2048"
BUDGETS = {SMALL: 256, LARGE: 2048}
PLUGINS = {WHOLE: BASE} | {
    arm: {**BASE, "chunked_prefill": {"max_num_batched_tokens": budget}} for arm, budget in BUDGETS.items()
}
MAX_NUM_SEQS = 128
MAX_LEN = 8192
STRICT, RELAXED = 0.1, 1.1
"""Seconds that 99 % of the gaps between tokens may take."""
MAX_WAIT = 2.0
"""Seconds of the median wait in the queue."""
LIGHT_RATE = 0.5
"""Requests a second at which both arms are far from their capacity, for the price of chunks."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1024, help="of each run (%(default)s)")
    parser.add_argument("--trace", type=Path, default=TRACE, help="the Azure conversation trace (beside the checkout)")
    add_options(parser)
    args = parser.parse_args()
    if not args.trace.is_file():
        sys.exit(f"there is no {args.trace}: name the trace with --trace")
    return experiment(args.trace, args.requests, args.seed).show(args.json)


def experiment(trace: Path, num_requests: int, seed: int) -> Result:
    @cache
    def metrics(arm: str, rate: float) -> Mapping[str, float]:
        """One run serves both objectives."""
        workload = from_trace(
            trace, num_requests=num_requests, max_len=MAX_LEN, seed=seed, arrivals=Arrivals(rate), ignore_eos=True
        )
        config = build_config(
            sections={
                # a step of whole prompts may be as long as the longest of them
                "engine": {"max_num_seqs": MAX_NUM_SEQS, "max_step_tokens": MAX_LEN, "max_model_len": MAX_LEN},
                "plugins": PLUGINS[arm],
            }
        )
        return simulate(config, workload, opt_13b_a100(), kv_tokens=KV_TOKENS).metrics()

    def keeps(arm: str, bound: float, rate: float) -> bool:
        found = metrics(arm, rate)
        return found["itl_p99"] <= bound and found["queue_wait_p50"] <= MAX_WAIT

    capacity = {
        (arm, bound): highest_rate(partial(keeps, arm, bound), first_rate=1.0)
        for arm in PLUGINS
        for bound in (STRICT, RELAXED)
    }
    gain = {(arm, bound): rate / capacity[WHOLE, bound] for (arm, bound), rate in capacity.items()}
    light = {arm: metrics(arm, LIGHT_RATE) for arm in PLUGINS}
    stall = light[WHOLE]["itl_max"] / light[SMALL]["itl_max"]
    ttft = light[SMALL]["ttft_p50"] / light[WHOLE]["ttft_p50"]
    figures = {
        f"{arm}: requests/s, gaps of {1e3 * bound:g} ms at most": rate for (arm, bound), rate in capacity.items()
    }
    for arm, found in light.items():
        figures[f"{arm}: longest gap at {LIGHT_RATE:g} requests/s, ms"] = 1e3 * found["itl_max"]
        figures[f"{arm}: median TTFT at {LIGHT_RATE:g} requests/s, ms"] = 1e3 * found["ttft_p50"]
    return Result(
        "Sarathi-Serve: prompts in chunks against whole prompts",
        seed,
        (
            Expected("capacity, strict, chunks of 256 over whole", gain[SMALL, STRICT], at_least=2.0, papers=4.7),
            Expected("capacity, relaxed, chunks of 256 over whole", gain[SMALL, RELAXED], at_most=1.3, papers=1.06),
            Expected("capacity, strict, chunks of 2048 over whole", gain[LARGE, STRICT], at_most=1.3, papers=0.89),
            Expected("longest gap under light load, whole over chunks of 256", stall, at_least=5.0),
            Expected("median TTFT under light load, chunks of 256 over whole", ttft),
        ),
        figures,
        opt_13b_a100(),
    )


if __name__ == "__main__":
    sys.exit(main())
