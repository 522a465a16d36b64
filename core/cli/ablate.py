"""`switchgear ablate`: what each plugin does here, with intervals, and whether it keeps its promise."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lab.designs import DESIGNS, read_vary
from .command import Command
from .options import add_config_options, config_from
from .output import print_table
from .workload_options import add_workload_options, workload_from

if TYPE_CHECKING:
    from ..lab.analysis import Analysis, ArmSummary, Effect, Interaction

BROKEN = 1
SHOWN = ("output_tokens_per_s", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
"""Metrics of the table on the screen; the file has all of them."""
RED, PLAIN = "\x1b[31m", "\x1b[0m"


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the study")
    group.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="JSON lines; one that exists is continued"
    )
    group.add_argument(
        "--design", default="leave-one-out", metavar="NAME", help=f"{', '.join(DESIGNS)} (default: %(default)s)"
    )
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="try values of an option too, such as plugins.paged_kv.block_size=8,16,32 (repeatable)",
    )
    group.add_argument(
        "--keep", action="append", default=[], metavar="NAME", help="leave a plugin on in every arm (repeatable)"
    )
    group.add_argument(
        "--resolution", type=int, default=4, help="of the fractional design, 3, 4 or 5 (default: %(default)s)"
    )
    group.add_argument(
        "--cache",
        default="cold",
        metavar="WHICH",
        help="cold, warm, or cold,warm to compare them (default: %(default)s)",
    )
    group.add_argument(
        "--budget", type=float, default=600.0, metavar="SECONDS", help="time for all of it (default: %(default)s)"
    )
    group.add_argument(
        "--precision",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="stop when every interval is within this share (default: %(default)s)",
    )
    group.add_argument(
        "--drift-limit",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="by how much the machine may move within a block (default: %(default)s)",
    )
    group.add_argument(
        "--check-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="tokens of each arm that everything-off reads (default: %(default)s)",
    )
    group.add_argument("--order-seed", type=int, default=0, metavar="N", help="of the order of runs (default: 0)")
    add_workload_options(parser)
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    config, workload = config_from(arguments), workload_from(arguments)
    from ..lab.ablate import Ablation
    from ..lab.machine import this_machine, versions
    from ..lab.measured import ProcessRunner
    from ..lab.results_file import ResultsFile, check_header, read_rows
    from ..lab.study import check_caches, prepare

    study, plans = prepare(
        config,
        workload,
        arguments.design,
        vary=read_vary(arguments.vary),
        kept=arguments.keep,
        resolution=arguments.resolution,
        say=tell,
        caches=check_caches(arguments.cache),
        budget=arguments.budget,
        precision=arguments.precision,
        drift_limit=arguments.drift_limit,
        check_tokens=arguments.check_tokens,
        seed=arguments.order_seed,
    )
    about = {
        "recipe": arguments.recipe or (str(arguments.config) if arguments.config else "recommended"),
        "machine": asdict(this_machine()),
        "versions": versions(),
        "command": ["switchgear", *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with ResultsFile(arguments.out) as file:
        header = as_read(study.header(about))
        if file.is_empty:
            rows = [file.append("header", **header)]
        else:
            rows = read_rows(arguments.out)
            check_header(arguments.out, rows[0], header)
            tell(f"going on with {arguments.out}")
        analysis = Ablation(study, plans, ProcessRunner(), file, rows, say=tell).run()
    show(analysis)
    return BROKEN if analysis.broken else 0


def as_read(header: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, with lists for tuples."""
    import json

    value: dict[str, Any] = json.loads(json.dumps(header))
    return value


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- what a person sees ---------------------------------------------------------------------------------------------


def show(analysis: Analysis) -> None:
    """Effects, interactions, arms, and what the design does not tell."""
    print(f"{analysis.num_blocks} blocks, {len(analysis.voided)} void; {analysis.ended}\n")
    effects = [effect for effect in analysis.effects if effect.metric in SHOWN]
    if effects:
        print_table(("switch", "metric", "cache", "on / off", "95 %", ""), [effect_row(effect) for effect in effects])
    found = [each for each in analysis.interactions if each.metric in SHOWN]
    if found:
        print()
        print_table(("together", "metric", "cache", "more", "95 %", ""), [interaction_row(each) for each in found])
    print()
    for line in arm_lines(analysis.arms):
        print(line)
    for note in analysis.notes:
        print(f"note  {note}")
    for block, reason in analysis.voided.items():
        print(f"void  block {block + 1}: {reason}")


def effect_row(effect: Effect) -> tuple[str, ...]:
    return effect.switch, effect.metric, effect.cache, *interval(effect)


def interaction_row(each: Interaction) -> tuple[str, ...]:
    return f"{each.first} x {each.second}", each.metric, each.cache, *interval(each)


def interval(each: Effect | Interaction) -> tuple[str, str, str]:
    if math.isinf(each.high):
        return f"x {each.ratio:.3f}", "of one block", "no interval"
    mark = "" if each.is_significant else "not told from 1"
    return f"x {each.ratio:.3f}", f"{each.low:.3f} to {each.high:.3f}", mark


def arm_lines(arms: Iterable[ArmSummary]) -> Iterable[str]:
    """One for each arm: what became of its promise."""
    said = set()
    for arm in arms:
        if arm.name in said:
            continue
        said.add(arm.name)
        if arm.is_broken:
            assert arm.equality is not None
            yield red(f"BROKEN   {arm.name} ({arm.equality.equivalence}): {arm.equality.problem}")
        elif arm.refused:
            yield f"refused  {arm.name}: {arm.refused}"
        elif arm.equality is None:
            yield f"unread   {arm.name}: there was no time to check its outputs"
        elif arm.equality.holds is None:
            yield f"unread   {arm.name} ({arm.equality.equivalence}): {arm.equality.problem}"
        else:
            about = f"{arm.equality.num_tokens} tokens read, {arm.equality.num_undecided} in undecided places"
            measure = f", {arm.equality.measure} {arm.equality.value:.3g}" if arm.equality.value is not None else ""
            yield f"equal    {arm.name} ({arm.equality.equivalence}): {about}{measure}"


def red(text: str) -> str:
    return f"{RED}{text}{PLAIN}" if sys.stdout.isatty() else text


COMMAND = Command(
    "ablate",
    "Measure what each plugin does, alone and with the others.",
    add_options,
    run,
    "Arms run in fresh processes, in blocks of random order, until every interval is narrow or the budget is spent; a "
    "killed run goes on with the same command. Outputs are compared with everything-off's. "
    f"Exit code {BROKEN}: an arm does not say what its class promises, or nothing could be measured.",
)
