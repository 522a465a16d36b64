"""Orca (OSDI'22): what iteration-level scheduling gains over request-level scheduling at equal latency.

Two engines that differ in one switch, `continuous_batching`, serve Orca's mix of lengths, U(32, 512) in and U(1, 128)
out, at eight slots in virtual time, with the step times that DistServe published for OPT-13B on an A100. Latency is the
median over requests of seconds from due to done, for each output token. Equal latency: twice that of a request alone.

Request-level scheduling gives nobody its answer before the whole batch has ended, as FasterTransformer, which Orca was
compared with. Our engine does not hold answers back; what that alone changes is shown too.

Expected (a sketch of a simulator on the same step times): 4.4 times the rate at equal latency, 1.84 times the tokens
when saturated. The control, where all outputs are equally long and all requests are there from the start: 1.0.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from experiment import Expected, Result, add_options, highest_rate
from published import opt_13b_a100
from switchgear.core.config import build_config
from switchgear.core.lab.arrivals import AT_ONCE, Arrivals
from switchgear.core.lab.served import Served
from switchgear.core.lab.simulate import SimulatedRun, simulate
from switchgear.core.lab.workload import Ask, Segment, Workload

PLUGINS: Mapping[str, Mapping[str, Mapping[str, object]]] = {"request": {}, "iteration": {"continuous_batching": {}}}
NUM_SLOTS = 8
PROMPT_LENGTHS, OUTPUT_LENGTHS = (32, 512), (1, 128)
LONGEST = PROMPT_LENGTHS[1] + OUTPUT_LENGTHS[1]
EQUAL_LENGTH = sum(OUTPUT_LENGTHS) // 2
FACTOR = 2.0
"""Equal latency, over that of a request that is alone."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512, help="of each run, a multiple of 8 (%(default)s)")
    add_options(parser)
    args = parser.parse_args()
    return experiment(args.requests, args.seed).show(args.json)


def experiment(num_requests: int, seed: int) -> Result:
    mixed, equal = (mix(num_requests, seed, is_equal) for is_equal in (False, True))
    alone = latency(served(mixed, 0.01, "request"))
    rates = {arm: rate_at(mixed, FACTOR * alone, arm) for arm in PLUGINS}
    together = rate_at(mixed, FACTOR * alone, "request", returns_together=True)
    alone_equal = latency(served(equal, 0.01, "request"))
    equal_rates = {arm: rate_at(equal, FACTOR * alone_equal, arm) for arm in PLUGINS}
    saturated = {arm: tokens_per_s(mixed, arm) for arm in PLUGINS}
    control = {arm: tokens_per_s(equal, arm) for arm in PLUGINS}
    return Result(
        "Orca: iteration-level against request-level scheduling, 8 slots",
        seed,
        (
            Expected("rate at equal latency, iteration over request", rates["iteration"] / together, 4.0, papers=4.4),
            Expected("the same, where each output of a batch is returned as it ends", over(rates)),
            Expected("tokens/s saturated, iteration over request", over(saturated), at_least=1.5, papers=1.84),
            Expected("tokens/s saturated, equal outputs", over(control), at_least=0.95, at_most=1.05, papers=1.0),
            Expected("rate at equal latency, equal outputs", over(equal_rates)),
        ),
        {
            "latency alone, ms a token": 1e3 * alone,
            **{f"{arm}: requests/s at equal latency": rate for arm, rate in rates.items()},
            "request, answers held until the batch ends: requests/s at equal latency": together,
            **{f"{arm}: tokens/s saturated": rate for arm, rate in saturated.items()},
            **{f"{arm}: tokens/s saturated, equal outputs": rate for arm, rate in control.items()},
            "longest output of a batch over the mean": longest_over_mean([ask.num_output for ask in mixed.asks]),
        },
        opt_13b_a100(),
    )


def mix(num_requests: int, seed: int, is_equal: bool) -> Workload:
    """Orca's lengths; with equal outputs, the mean one for all."""
    generator = np.random.default_rng([seed, 0x04CA])
    prompts = generator.integers(*PROMPT_LENGTHS, num_requests, endpoint=True).tolist()
    outputs = generator.integers(*OUTPUT_LENGTHS, num_requests, endpoint=True).tolist()
    asks = tuple(
        Ask(0.0, EQUAL_LENGTH if is_equal else output, (Segment(number, prompt),))
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    )
    return Workload("orca", asks, seed=seed, about={"workload": "orca"})


def run(workload: Workload, arm: str) -> SimulatedRun:
    config = build_config(
        sections={
            "engine": {"max_num_seqs": NUM_SLOTS, "max_step_tokens": NUM_SLOTS * LONGEST, "max_model_len": LONGEST},
            "plugins": PLUGINS[arm],
        }
    )
    return simulate(config, workload, opt_13b_a100(), kv_tokens=NUM_SLOTS * LONGEST)


def served(workload: Workload, rate: float, arm: str) -> tuple[Served, ...]:
    return run(Arrivals(rate).of(workload), arm).served


def rate_at(workload: Workload, bound: float, arm: str, *, returns_together: bool = False) -> float:
    """The highest rate at which the median latency keeps a bound."""

    def keeps(rate: float) -> bool:
        answers = served(workload, rate, arm)
        return latency(as_batches(answers) if returns_together else answers) <= bound

    return highest_rate(keeps, first_rate=1.0)


def latency(answers: Sequence[Served]) -> float:
    """Median seconds for each output token."""
    return float(np.median([each.end_to_end / each.num_output for each in answers]))


def as_batches(answers: Sequence[Served]) -> list[Served]:
    """The same, but nobody gets its answer before the last of its batch, as in FasterTransformer.

    Prompts of a batch are computed in one step, so its first tokens come at one moment.
    """
    ends: dict[float, float] = defaultdict(float)
    for each in answers:
        ends[each.token_times[0]] = max(ends[each.token_times[0]], each.finished)
    return [replace(each, finished=ends[each.token_times[0]]) for each in answers]


def tokens_per_s(workload: Workload, arm: str) -> float:
    return run(AT_ONCE.of(workload), arm).metrics()["output_tokens_per_s"]


def over(values: Mapping[str, float]) -> float:
    return values["iteration"] / values["request"]


def longest_over_mean(outputs: Sequence[int]) -> float:
    """What idle slots cost request-level scheduling in decode steps, at most."""
    batches = np.array(outputs).reshape(-1, NUM_SLOTS)
    return float(batches.max(axis=1).mean() / batches.mean())


if __name__ == "__main__":
    sys.exit(main())
