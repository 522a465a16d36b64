"""`switchgear profile`: what the engine's steps take on this machine, a cost model of them, and a config."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .bench_options import print_heading
from .command import Command
from .options import add_config_options, config_from
from .output import finite, megabytes, print_json, print_table

if TYPE_CHECKING:
    from ..lab.objective_config import Recommendation
    from ..lab.plugin_costs import Costs
    from ..lab.profile import Profile

BUDGET = 120.0
NUM_METHODS = 12
"""That the table names; --json has all of them."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help="about how long to measure; three rounds of steps at least (default: %(default)g)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the cost model there, as JSON")
    parser.add_argument("--no-costs", action="store_true", help="leave out what each plugin costs")
    wish = parser.add_argument_group("a config for an objective")
    wish.add_argument("--config-out", type=Path, metavar="FILE", help="write the recommended config there, as TOML")
    wish.add_argument(
        "--objective",
        choices=("throughput", "latency"),
        default="throughput",
        help="what to make the most of (default: %(default)s)",
    )
    wish.add_argument("--ttft", type=float, metavar="SECONDS", help="the most that a first token may take")
    wish.add_argument("--tpot", type=float, metavar="SECONDS", help="the most that a token after it may take")
    wish.add_argument(
        "--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 512, or what fits)"
    )
    wish.add_argument(
        "--output-len", type=int, metavar="N", help="output tokens of a request (default: 128, or what fits)"
    )
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    if not 0 < arguments.budget < float("inf"):
        raise ConfigError(f"--budget is {arguments.budget:g}: it must be more than 0 seconds")
    for path in filter(None, (arguments.out, arguments.config_out)):
        if not path.resolve().parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.resolve().parent}")
    config = config_from(arguments)
    from ..lab.objective_config import recommend, to_toml
    from ..lab.plugin_costs import import_seconds
    from ..lab.profile import check_profile, make_profile

    imports = import_seconds(config)
    # before anything is measured for a wish that nobody can have
    wish_of(arguments, check_profile(config))
    profile = make_profile(config, arguments.budget, imports=imports, has_costs=not arguments.no_costs, progress=tell)
    better = recommend(profile, config, wish_of(arguments, profile.plan.max_model_len))
    toml = to_toml(better)
    if arguments.out:
        write(arguments.out, json.dumps(finite(profile.to_json()), indent=1) + "\n")
    if arguments.config_out:
        write(arguments.config_out, toml)
    if arguments.json:
        print_json({**profile.to_json(), "recommended": recommended_table(better, toml)})
    else:
        print_profile(profile)
        print_recommendation(better, toml)
    return 0


def wish_of(arguments: Namespace, max_model_len: int) -> Any:
    """What was asked for. Raises ConfigError for what does not fit the model's length."""
    from ..lab.objective_config import Wish

    input_len = min(512, max_model_len // 2) if arguments.input_len is None else arguments.input_len
    output_len = min(128, max_model_len - input_len) if arguments.output_len is None else arguments.output_len
    wish = Wish(arguments.objective, arguments.ttft, arguments.tpot, input_len, output_len)
    wish.check(max_model_len)
    return wish


def tell(text: str) -> None:
    """How far it is, for whoever waits at a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


# -- tables ---------------------------------------------------------------------------------------------------------


def print_profile(profile: Profile) -> None:
    ceilings, rates = profile.ceilings, profile.ceilings.flops_per_s
    notes = [
        f"reads    {ceilings.far_bytes_per_s / 1e9:.1f} GB/s far beyond the caches, "
        f"{ceilings.weights_bytes_per_s / 1e9:.1f} GB/s over as much as the weights",
        f"products {', '.join(f'{rate / 1e9:.0f} GFLOP/s in {dtype}' for dtype, rate in rates.items())}",
        f"start    {profile.startup_seconds:.1f} s; {profile.num_rounds} rounds of steps, the first of them warm-up; "
        f"{profile.seconds:.0f} s in all",
    ]
    print_heading(profile.plan, profile.machine, profile.versions, notes)
    print_steps(profile)
    print_model(profile)
    print_thresholds(profile)
    if profile.costs is None:
        print(f"plugin costs  {profile.costs_problem}\n")
    else:
        print_costs(profile.costs)


def print_steps(profile: Profile) -> None:
    for title, points in (("decode", profile.decode_points()), ("prefill", profile.prefill_points())):
        rows = [
            (
                str(point.counts.num_rows),
                str(point.counts.num_tokens),
                f"{point.counts.num_context / point.counts.num_rows:.0f}",
                f"{point.median * 1000:.2f}",
                f"{point.spread:.0%}",
                f"{point.executor_median * 1000:.2f}",
                f"{profile.model.seconds(point.counts) / point.median - 1:+.0%}",
                "held out" if point.is_held_out else "",
            )
            for point in points
        ]
        print(title)
        print_table(("rows", "tokens", "context", "step ms", "spread", "forward ms", "model", ""), rows)
        print()


def print_model(profile: Profile) -> None:
    model = profile.model
    print("cost model")
    print(f"  fixed {model.fixed * 1e3:.3f} ms, a row {model.per_row * 1e6:.1f} us, a token of context ", end="")
    print(f"{model.per_context * 1e6:.3f} us, a pair of query and key {model.per_pair * 1e6:.3f} us")
    for name, curve in (("tokens", model.tokens), ("outputs", model.outputs)):
        knots = (f"{count}: {seconds * 1e3:.2f}" for count, seconds in zip(curve.counts, curve.seconds, strict=True))
        print(f"  {name}, ms: {', '.join(knots) or 'nothing'}")
    for name, residuals in (("fitted", profile.fitted), ("held-out", profile.held_out)):
        print(
            f"  off by {residuals.median:.1%} at the median of {residuals.num_points} {name} points, "
            f"{residuals.worst:.1%} at the worst"
        )
    print()


def print_thresholds(profile: Profile) -> None:
    from ..lab.profile import engine_share
    from ..lab.thresholds import DEPARTURE, DISTURBANCE

    crossover, chunk = profile.crossover, profile.chunk
    most = crossover.steps[-1].num_rows if crossover.steps else 0

    def where(size: float | None) -> str:
        return f"beyond {most}, the most that was measured" if size is None else f"{size:.1f} rows"

    print(f"crossover     decode leaves the memory line by {DEPARTURE:.0%} at {where(crossover.batch_size)}")
    print(f"              and takes twice as long as the line at {where(crossover.doubles_at)}")
    if chunk.num_tokens is None:
        print("free chunk    none: this scheduler runs no prompt beside decodes")
    else:
        steps = ", ".join(f"{step.num_chunk}: {step.slowdown:+.0%}" for step in chunk.steps)
        print(
            f"free chunk    {chunk.num_tokens} tokens lengthen a step of {chunk.num_rows} decodes by at most "
            f"{DISTURBANCE:.0%} ({steps})"
        )
    print(f"engine        {engine_share(profile.points):.0%} of a decode step is the engine's own, not the forward\n")


def print_costs(costs: Costs) -> None:
    print(f"what plugins cost: a step of {costs.num_rows} decodes, and one prompt of {costs.num_prompt} tokens")
    rows = [
        (
            cost.plugin,
            f"{cost.decode_seconds * 1e3:.3f}",
            f"{cost.prefill_seconds * 1e3:.3f}",
            megabytes(cost.num_bytes),
            f"{cost.import_seconds:.3f}",
            f"{cost.start_seconds:.3f}",
        )
        for cost in costs.plugins
    ]
    print_table(("plugin", "decode ms", "prefill ms", "bytes", "import s", "start s"), rows)
    spent = sum(cost.decode_seconds for cost in costs.plugins), sum(cost.prefill_seconds for cost in costs.plugins)
    print(
        f"the rest of the step, the engine itself: {max(0.0, costs.decode_seconds - spent[0]) * 1e3:.3f} ms of "
        f"{costs.decode_seconds * 1e3:.3f}, {max(0.0, costs.prefill_seconds - spent[1]) * 1e3:.3f} ms of "
        f"{costs.prefill_seconds * 1e3:.3f}"
    )
    print(f"the clocks added {costs.decode_overhead:.1%} and {costs.prefill_overhead:.1%}, which is taken out\n")
    shown = costs.methods[:NUM_METHODS]
    print_table(
        ("method", "decode calls", "decode ms", "prefill calls", "prefill ms"),
        [
            (
                f"{cost.plugin} {cost.hook}.{cost.method}",
                f"{cost.decode_calls:.1f}",
                f"{cost.decode_seconds * 1e3:.3f}",
                f"{cost.prefill_calls:.1f}",
                f"{cost.prefill_seconds * 1e3:.3f}",
            )
            for cost in shown
        ],
    )
    print()


def print_recommendation(better: Recommendation, toml: str) -> None:
    prospect = better.prospect
    met = "" if better.is_met else "NOT met here: this comes nearest; "
    print(
        f"recommended   {met}{prospect.output_tokens_per_s:.0f} output tokens/s, {prospect.step * 1000:.1f} ms a token "
        f"and {prospect.worst_step * 1000:.1f} ms at worst, first token after {prospect.ttft:.2f} s, by the model\n"
    )
    print(toml, end="")


def recommended_table(better: Recommendation, toml: str) -> dict[str, Any]:
    return {
        "is_met": better.is_met,
        "expected": asdict(better.prospect),
        "reasons": [asdict(reason) for reason in better.reasons],
        "toml": toml,
    }


COMMAND = Command(
    "profile",
    "Measure what the engine's steps take here; write a cost model and a recommended config.",
    add_options,
    run,
    "Measures the machine's read bandwidth and matrix rate, real steps over batch sizes, contexts, prompts and chunks, "
    "in rounds, and what each plugin costs; takes all of the machine meanwhile.",
)
