"""How many engine steps a second of one core a simulation makes, and where its time goes.

The recommended plugins, every request in decode: so many rows a step. What a simulation needs beside that, prompts and
the hashes of their blocks, is in the second part: the hour of the Azure conversation trace on eight replicas.

Targets: 10,000 steps a second; the hour in under five minutes.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import sys
import time
from pathlib import Path

from published import KV_TOKENS, opt_13b_a100
from switchgear.core.cli.output import print_table
from switchgear.core.config import build_config
from switchgear.core.lab.replicas import make_replicas
from switchgear.core.lab.simulate import Simulation, shape_for
from switchgear.core.lab.traces import from_trace
from switchgear.core.lab.workload import Workload
from switchgear.core.lab.workloads import fixed

TRACE = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
STEPS_PER_SECOND, SECONDS = 10_000, 300
MAX_LEN = 16_384


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,16,64", help="requests that decode, separated by commas (%(default)s)")
    parser.add_argument("--steps", type=int, default=5000, help="of each (%(default)s)")
    parser.add_argument("--top", type=int, default=25, help="lines of the profile of 4 rows, 0 for none (%(default)s)")
    parser.add_argument("--trace", type=Path, default=TRACE, help="the Azure conversation trace (beside the checkout)")
    parser.add_argument("--requests", type=int, help="of the trace (all: an hour); 0 leaves it out")
    parser.add_argument("--replicas", type=int, default=8, help="(%(default)s)")
    args = parser.parse_args()

    rows = []
    for count in map(int, args.rows.split(",")):
        steps_per_s, _ = timed(decoding(count, args.steps))
        rows.append((str(count), f"{steps_per_s:,.0f}", f"{1e6 / steps_per_s:.0f}"))
    print_table(("rows", "steps/s", "us a step"), rows)
    if args.top:
        print(profile_of(decoding(4, args.steps), args.top))
    is_met = any(float(row[1].replace(",", "")) >= STEPS_PER_SECOND for row in rows)
    if args.requests != 0:
        workload = from_trace(args.trace, num_requests=args.requests, max_len=MAX_LEN)
        steps_per_s, seconds = timed(simulation(workload, args.replicas))
        print(
            f"\n{len(workload.asks)} requests on {args.replicas} replicas: {seconds:.0f} s, {steps_per_s:,.0f} steps/s"
        )
        is_met = is_met and seconds < SECONDS
    return 0 if is_met else 1


def decoding(num_rows: int, num_steps: int) -> Simulation:
    """One step computes all prompts, every further one decodes for every request."""
    return simulation(fixed(num_rows, 64, min(num_steps, KV_TOKENS // num_rows - 96)), 1)


def simulation(workload: Workload, num_replicas: int) -> Simulation:
    config = build_config(sections={"engine": {"max_step_tokens": 2048, "max_model_len": MAX_LEN}})
    cost_model = opt_13b_a100()
    return Simulation(
        make_replicas(shape_for(config, workload, cost_model, KV_TOKENS), cost_model, num_replicas), workload
    )


def timed(made: Simulation) -> tuple[float, float]:
    """Steps a second and seconds, of CPU time, without what is done before the first request."""
    start = time.process_time()
    run = made.run()
    seconds = time.process_time() - start
    assert not run.metrics()["errors"]
    return run.num_steps / seconds, seconds


def profile_of(made: Simulation, num_lines: int) -> str:
    """The functions that take most by themselves; a profile makes small ones look dearer than they are."""
    profile = cProfile.Profile()
    profile.runcall(made.run)
    stream = io.StringIO()
    pstats.Stats(profile, stream=stream).strip_dirs().sort_stats("tottime").print_stats(num_lines)
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
