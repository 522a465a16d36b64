"""`switchgear bench max-rate`: the most requests a second that keep an objective."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .bench_target import (
    about_run,
    about_target,
    about_workload,
    add_objective_options,
    add_target_options,
    objective_from,
    print_target,
    progress,
    target_from,
)
from .command import Command
from .exit_codes import FAILED, INTERRUPTED
from .interrupt import interrupts
from .output import print_json_line
from .workload_options import add_workload_options, workload_from

if TYPE_CHECKING:
    from ..lab.max_rate import Bracket

HEADER = ("rate", "attainment", "ttft p90", "tpot p90", "answered/s", "kept")
WIDTHS = (10, 10, 10, 10, 10)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON lines: a start, each probe, the result")
    add_objective_options(parser, required=True)
    search = parser.add_argument_group("the search")
    search.add_argument(
        "--attainment", type=float, default=0.9, metavar="SHARE", help="of requests that must meet it (%(default)s)"
    )
    search.add_argument(
        "--first-rate", type=float, default=1.0, metavar="R", help="requests a second to begin with (%(default)s)"
    )
    search.add_argument(
        "--precision", type=float, default=0.05, metavar="X", help="how closely the rate is looked for (%(default)s)"
    )
    search.add_argument("--max-probes", type=int, default=12, metavar="N", help="runs at most (%(default)s)")
    add_workload_options(parser, has_rate=False)
    add_target_options(parser)


def run(arguments: Namespace) -> int:
    from ..lab.arrivals import POISSON, at_rate
    from ..lab.keys import with_fresh_tokens
    from ..lab.max_rate import Search, max_rate

    objective = objective_from(arguments)
    assert objective is not None, "both options are required"
    search = Search(arguments.attainment, arguments.first_rate, arguments.precision, arguments.max_probes)
    variation, arguments.variation = arguments.variation, None
    workload = workload_from(arguments)
    if len(workload.asks) < 2:
        raise ConfigError("one request has no rate: ask for more")
    with closing(target_from(arguments, workload)) as target, interrupts() as is_interrupted:
        about = about_target(target)
        if arguments.json:
            start = {"objective": {"ttft": objective.ttft, "tpot": objective.tpot, "attainment": search.attainment}}
            print_json_line({"kind": "start", **start, **about_workload(workload), **about})
        else:
            print_target(target, workload)
            print(f"objective: {objective}, by {search.attainment:.0%} of the requests\n")
            print_row(*HEADER)

        def probe(rate: float, number: int) -> float | None:
            """Prompts are fresh in every probe, or a cache that has seen them would answer."""
            asked = with_fresh_tokens(at_rate(workload, rate, POISSON if variation is None else variation), number)
            if number:
                target.forget()
            with progress(len(asked.asks), f"{rate:.3g}/s") as tell:
                measured = target.run(asked, on_served=tell, should_stop=is_interrupted)
            if not measured.is_whole:
                return None
            attainment = objective.attainment(measured.served)
            metrics = measured.metrics(objective)
            kept = attainment >= search.attainment
            if arguments.json:
                found = {"rate": rate, "attainment": attainment, "kept": kept, "metrics": metrics}
                print_json_line({"kind": "probe", **found, **about_run(measured)})
            else:
                times = (f"{metrics[name]:.4f}" if name in metrics else "" for name in ("ttft_p90", "tpot_p90"))
                answered = f"{metrics['requests_per_s']:.2f}"
                print_row(f"{rate:.3f}", f"{attainment:.1%}", *times, answered, "yes" if kept else "no")
            return attainment

        bracket = max_rate(probe, search)
        if arguments.json:
            print_json_line({"kind": "result", **result_of(bracket), **about_workload(workload), **about})
        else:
            print(f"\n{sentence(bracket, search.precision)}")
    if is_interrupted():
        return INTERRUPTED
    return FAILED if bracket.kept is None else 0


def print_row(*cells: str) -> None:
    """One line at once: a probe takes its time."""
    padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    print("  ".join([*padded, *cells[len(WIDTHS) :]]).rstrip(), flush=True)


def result_of(bracket: Bracket) -> dict[str, Any]:
    return {"max_rate": bracket.kept, "lowest_missed": bracket.missed, "num_probes": bracket.num_probes}


def sentence(bracket: Bracket, precision: float) -> str:
    match bracket.kept, bracket.missed:
        case None, None:
            return "nothing was measured"
        case None, missed:
            return f"no rate was found that keeps the objective: even {missed:.3f} requests/s did not"
        case kept, None:
            return (
                f"{kept:.3f} requests/s keep the objective, and no rate was found that does not: ask for more "
                "requests, so that a queue can build up, or allow more probes"
            )
    width = "" if bracket.is_narrow(precision) else "; it was not looked for any closer"
    return f"{bracket.kept:.3f} requests/s keep the objective, {bracket.missed:.3f} do not{width}"


COMMAND = Command(
    "max-rate",
    "Find the most requests a second that keep an objective.",
    add_options,
    run,
    "Each probe runs the whole workload at another rate, its times stretched, its random tokens fresh. The rate is "
    "doubled or halved until one keeps the objective and one does not, then bisected. Ask for enough requests that a "
    "queue can build up within a probe. Exit code 1: no rate was found that keeps it.",
)
