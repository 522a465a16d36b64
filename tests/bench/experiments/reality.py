"""Whether a simulation says what this machine does: throughput, TTFT and TPOT of workloads that no fit has seen.

Profile, then each workload measured and simulated with that profile's cost model, round after round, so that profile
and runs see the same hours of the machine. Simulated and measured agree if their ratio, the median over the rounds, is
off by 15 % at most, or by no more than what was measured differs from round to round.

Takes all of the machine: nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from switchgear.core.cli.options import add_config_options, config_from
from switchgear.core.cli.output import print_table
from switchgear.core.config import Config
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.bench_run import measure_arm
from switchgear.core.lab.cost_model import CostModel
from switchgear.core.lab.keys import with_fresh_tokens
from switchgear.core.lab.machine import this_machine, versions
from switchgear.core.lab.profile import make_profile
from switchgear.core.lab.simulate import simulate
from switchgear.core.lab.workload import Workload
from switchgear.core.lab.workloads import conversations, fixed, shared_prefix

METRICS = {"output_tokens_per_s": "output tokens/s", "ttft_mean": "mean TTFT, s", "tpot_mean": "mean TPOT, s"}
TOLERANCE = 0.15
MAX_LOAD = 0.5
SECONDS_TO_WAIT = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="profiles and runs of each workload (%(default)s)")
    parser.add_argument("--budget", type=float, default=90, help="seconds of each profile (%(default)s)")
    parser.add_argument("--noisy", action="store_true", help="measure even where other programs run")
    parser.add_argument("--json", action="store_true", help="print every round and the result as JSON lines")
    add_config_options(parser)
    args = parser.parse_args()
    if args.rounds < 1:
        sys.exit(f"--rounds is {args.rounds}: it takes at least one")
    if not args.noisy:
        require_quiet()
    config = config_from(args)
    rounds = [one_round(config, number, args.budget, args.json) for number in range(args.rounds)]
    agreements = [
        Agreement.of(workload, metric, [each[workload] for each in rounds])
        for workload in workloads()
        for metric in METRICS
    ]
    show(agreements, args.json)
    return 0 if all(each.holds for each in agreements) else 1


def workloads() -> Mapping[str, Workload]:
    """Lengths, batches and arrivals of which none is a point of a profile."""
    return {
        "closed loop of 6": fixed(24, 200, 48, seed=11, arrivals=Arrivals(num_clients=6)),
        "Poisson, shared prefix": shared_prefix(24, 300, 40, 40, num_prefixes=3, seed=12, arrivals=Arrivals(rate=2.0)),
        "conversations": conversations(5, 4, 90, 30, prefix_len=120, seed=13),
    }


def one_round(config: Config, number: int, budget: float, as_json: bool) -> dict[str, Pair]:
    """A profile, and each workload measured and simulated."""
    tell(f"round {number + 1}: profile, {budget:g} s")
    cost_model = make_profile(config, budget, has_costs=False).model
    pairs = {}
    for name, workload in workloads().items():
        tell(f"round {number + 1}: {name}")
        # tokens of its own in every round: nothing that stays in memory may help
        fresh = with_fresh_tokens(workload, number)
        measured = measure_arm(config, fresh, warm=False)
        simulated = simulate(config, fresh, cost_model)
        pairs[name] = Pair(simulated.metrics(), measured.metrics())
        if as_json:
            row = {
                "kind": "round",
                "round": number,
                "workload": name,
                "plan": measured.plan_hash,
                **asdict(pairs[name]),
            }
            print(json.dumps({**row, "cost_model": stamp(cost_model)}), flush=True)
    return pairs


@dataclass(frozen=True, slots=True)
class Pair:
    """One workload in one round."""

    simulated: Mapping[str, float]
    measured: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One metric of one workload over all rounds."""

    workload: str
    metric: str
    simulated: float
    measured: float
    ratio: float
    """Simulated over measured, the median of the rounds' own ratios."""
    spread: float
    """Of what was measured: the most over the least, less 1."""

    @classmethod
    def of(cls, workload: str, metric: str, pairs: Sequence[Pair]) -> Agreement:
        simulated = [pair.simulated[metric] for pair in pairs]
        measured = [pair.measured[metric] for pair in pairs]
        ratios = [mine / theirs for mine, theirs in zip(simulated, measured, strict=True)]
        spread = max(measured) / min(measured) - 1
        mine, theirs, ratio = map(statistics.median, (simulated, measured, ratios))
        return cls(workload, metric, mine, theirs, ratio, spread)

    @property
    def bound(self) -> float:
        return max(TOLERANCE, self.spread)

    @property
    def holds(self) -> bool:
        """Within the bound in either direction, as factors are."""
        return 1 / (1 + self.bound) <= self.ratio <= 1 + self.bound


def show(agreements: Sequence[Agreement], as_json: bool) -> None:
    about = {"machine": asdict(this_machine()), "versions": versions()}
    if as_json:
        rows = [{**asdict(each), "bound": each.bound, "holds": each.holds} for each in agreements]
        print(json.dumps({"kind": "result", "agreements": rows, **about}), flush=True)
        return
    print(f"machine  {this_machine()}\n")
    header = ("workload", "", "simulated", "measured", "ratio", "bound", "")
    print_table(
        header,
        [
            (
                each.workload,
                METRICS[each.metric],
                f"{each.simulated:.4g}",
                f"{each.measured:.4g}",
                f"{each.ratio:.3f}",
                f"{each.bound:.0%}",
                "PASS" if each.holds else "FAIL",
            )
            for each in agreements
        ],
    )


def stamp(cost_model: CostModel) -> dict[str, str]:
    return {"name": cost_model.name, "source": cost_model.source, "machine": cost_model.machine}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def require_quiet() -> None:
    """Wait until nothing else runs, and end the program if that does not happen."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while os.getloadavg()[0] > MAX_LOAD:
        if time.monotonic() > end:
            sys.exit(f"the load average is {os.getloadavg()[0]:.2f}: end what else runs, or measure with --noisy")
        time.sleep(5)


if __name__ == "__main__":
    sys.exit(main())
