"""`switchgear bench load`: what users of an engine or a server would see under a load."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from .bench_target import (
    about_run,
    about_target,
    about_workload,
    add_objective_options,
    add_price_option,
    add_target_options,
    objective_from,
    price_from,
    print_target,
    progress,
    target_from,
)
from .command import Command
from .exit_codes import FAILED, INTERRUPTED
from .interrupt import interrupts
from .output import print_json_line, print_table
from .workload_options import add_workload_options, workload_from

if TYPE_CHECKING:
    from ..lab.bench_run import Run
    from ..lab.served import Served

STATISTICS = ("mean", "p50", "p90", "p99", "max")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON lines: a start, each request, the whole run")
    parser.add_argument("--warm", action="store_true", help="run it once before, so that caches have seen the prompts")
    add_price_option(parser, "the machine")
    add_workload_options(parser)
    add_objective_options(parser, required=False)
    add_target_options(parser)


def run(arguments: Namespace) -> int:
    objective, workload = objective_from(arguments), workload_from(arguments)
    price = price_from(arguments)
    with closing(target_from(arguments, workload)) as target, interrupts() as is_interrupted:
        num_requests = len(workload.asks)
        about = about_target(target)
        if arguments.json:
            print_json_line({"kind": "start", **about_workload(workload), **about})
        else:
            print_target(target, workload)
        if arguments.warm:
            with progress(num_requests, "warming up") as tell:
                target.run(workload, on_served=tell, should_stop=is_interrupted)
        then = print_served if arguments.json else None
        with progress(num_requests, "measuring", then) as tell:
            measured = target.run(workload, on_served=tell, should_stop=is_interrupted)
        metrics = measured.metrics(objective, price)
        if arguments.json:
            print_json_line(
                {"kind": "run", "metrics": metrics, **about_workload(workload), **about, **about_run(measured)}
            )
        else:
            print_run(measured, metrics, num_requests, shows_plan=target.plan is None)
    if not measured.is_whole:
        return INTERRUPTED
    return FAILED if metrics["errors"] else 0


# -- JSON -----------------------------------------------------------------------------------------------------------


def print_served(served: Served) -> None:
    """One request, as soon as it has ended."""
    print_json_line(
        {
            "kind": "request",
            "index": served.index,
            "due": served.due,
            "sent": served.sent,
            "ttft": served.ttft,
            "tpot": served.tpot,
            "e2e": served.end_to_end,
            "queue_wait": served.queue_wait,
            "num_prompt": served.num_prompt,
            "num_output": served.num_output,
            "num_cached": None if served.num_cached < 0 else served.num_cached,
            "finish_reason": served.finish_reason,
            "error": served.error,
        }
    )


# -- tables ---------------------------------------------------------------------------------------------------------


def print_run(run: Run, metrics: Mapping[str, float], num_requests: int, *, shows_plan: bool) -> None:
    from ..lab.metrics import METRICS

    if not run.is_whole:
        print(f"stopped after {len(run.served)} of {num_requests} requests\n")
    rows = time_rows(metrics)
    if rows:
        print_table(("seconds", *STATISTICS), rows)
        print()
    shown = {f"{name}_{statistic}" for name in TIMES for statistic in STATISTICS}
    others = [(METRICS[name].label, figure(name, value)) for name, value in metrics.items() if name not in shown]
    if shows_plan and run.plan_hash:
        others += [("plan", run.plan_hash), ("environment", run.environment)]
    print_table(("the whole run", ""), others)
    for error, count in errors_of(run).items():
        print(f"failed   {count}: {error}")


TIMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "gap between tokens",
    "e2e": "end to end",
    "queue_wait": "wait in the queue",
}


def time_rows(metrics: Mapping[str, float]) -> list[tuple[str, ...]]:
    rows = []
    for name, label in TIMES.items():
        cells = [metrics.get(f"{name}_{statistic}") for statistic in STATISTICS]
        if any(cell is not None for cell in cells):
            rows.append((label, *("" if cell is None else f"{cell:.4f}" for cell in cells)))
    return rows


def figure(name: str, value: float) -> str:
    from ..lab.metrics import METRICS

    match METRICS[name].unit:
        case "share":
            return f"{value:.1%}"
        case "":
            return f"{value:.0f}" if value == round(value) else f"{value:.2f}"
        case "price":
            return f"{value:.4g}"
        case unit:
            return f"{value:.2f} {unit}"


def errors_of(run: Run) -> dict[str, int]:
    """How often each error came, the most frequent first."""
    counts: dict[str, int] = {}
    for served in run.served:
        if served.error:
            counts[served.error] = counts.get(served.error, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


COMMAND = Command(
    "load",
    "Measure times, throughput and goodput under a load.",
    add_options,
    run,
    "The load is the same for every target and seed. Decoding is greedy. Ctrl-C ends the run and shows what was "
    "measured so far (exit code 130), a second one shows nothing. Exit code 1: a request failed.",
)
