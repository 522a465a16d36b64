"""`switchgear simulate`: a config under a load in virtual time, on as many replicas as one likes."""

from __future__ import annotations

import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .bench_load import print_run, print_served
from .bench_target import (
    about_workload,
    add_objective_options,
    add_price_option,
    objective_from,
    price_from,
    progress,
)
from .command import Command
from .exit_codes import FAILED
from .options import add_config_options, config_from
from .output import print_json_line
from .workload_options import add_workload_options, workload_from

if TYPE_CHECKING:
    from ..lab.cost_model import CostModel
    from ..lab.simulate import SimulatedRun
    from ..lab.workload import Workload
    from ..plan import EffectivePlan


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--cost-model", type=Path, metavar="FILE", required=True, help="what steps cost, as `switchgear profile` has it"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="equal engines behind a router (default 1)"
    )
    parser.add_argument(
        "--kv-tokens",
        type=int,
        metavar="N",
        help="tokens that the KV pool of a replica holds, of a model that is not at hand; without it the config's "
        "model and kv_bytes say so",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines: a start, each request, the whole run")
    add_price_option(parser, "one replica")
    add_workload_options(parser)
    add_objective_options(parser, required=False)
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    from ..lab.cost_model import CostModel
    from ..lab.replicas import make_replicas
    from ..lab.simulate import Simulation, shape_for

    objective, workload = objective_from(arguments), workload_from(arguments)
    price = price_from(arguments)
    if arguments.stop_at_eos:
        raise ConfigError("--stop-at-eos has no effect in a simulation, whose outputs are as long as they may be")
    if arguments.model is not None and arguments.kv_tokens is not None:
        raise ConfigError("--model has no effect beside --kv-tokens, which stands for a model that is not at hand")
    cost_model = CostModel.load(arguments.cost_model)
    shape = shape_for(config_from(arguments), workload, cost_model, arguments.kv_tokens)
    replicas = make_replicas(shape, cost_model, arguments.replicas)
    about = {**about_workload(workload), **about_simulation(replicas.plan, cost_model, arguments.replicas)}
    if arguments.json:
        print_json_line({"kind": "start", **about})
    else:
        print_heading(replicas.plan, cost_model, arguments.replicas, workload)
    started = time.process_time()
    with progress(len(workload.asks), "simulating", print_served if arguments.json else None) as tell:
        simulated = Simulation(replicas, workload, tell).run()
    metrics = simulated.metrics(objective, None if price is None else price * arguments.replicas)
    if arguments.json:
        print_json_line({"kind": "run", "metrics": metrics, **about_run(simulated), **about})
    else:
        print_run(simulated, metrics, len(workload.asks), shows_plan=False)
        print_speed(simulated, time.process_time() - started)
    return FAILED if metrics["errors"] else 0


def about_simulation(plan: EffectivePlan, cost_model: CostModel, num_replicas: int) -> dict[str, Any]:
    """What a figure in JSON is worth nothing without. This machine is not in it: it has no part in the figures."""
    from ..lab.machine import versions

    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "plan": plan.hash,
        "environment": plan.environment,
        "versions": versions(),
        "replicas": num_replicas,
        "cost_model": about_cost_model(cost_model),
    }


def about_cost_model(cost_model: CostModel) -> Mapping[str, str]:
    return {"name": cost_model.name, "source": cost_model.source, "machine": cost_model.machine}


def about_run(run: SimulatedRun) -> dict[str, Any]:
    return {"num_steps": run.num_steps, "num_requests": run.num_requests}


def print_heading(plan: EffectivePlan, cost_model: CostModel, num_replicas: int, workload: Workload) -> None:
    plugins = ", ".join(plugin.name for plugin in plan.plugins) or "none"
    about = "  ".join(f"{name} {value}" for name, value in workload.about.items() if name != "workload")
    print(f"plan     {plan.hash}  environment {plan.environment}")
    print(f"model    {plan.model}, {plan.dtype}; plugins: {plugins}")
    print(f"costs    {cost_model.name}, of {cost_model.machine}: {cost_model.source}")
    print(f"engines  {num_replicas} of {plan.kv_num_blocks} KV blocks of {plan.kv_block_size} tokens")
    print(f"asked    {workload.name} ({workload.fingerprint})  {about}", end="\n\n")


def print_speed(run: SimulatedRun, seconds: float) -> None:
    """On standard error: it is this machine's and differs from run to run."""
    rate = run.num_steps / seconds if seconds else math.inf
    spread = ", ".join(map(str, run.num_requests))
    print(f"simulated {run.num_steps} steps in {seconds:.1f} s of CPU time, {rate:.0f} a second", file=sys.stderr)
    if len(run.num_requests) > 1:
        print(f"\nrequests of each replica: {spread}")


COMMAND = Command(
    "simulate",
    "Try a config under a load in virtual time.",
    add_options,
    run,
    "The engine and its plugins are the real ones; a cost model stands for the model, and time jumps. The same options "
    "give the same figures to the last digit. Exit code 1: a request failed.",
)
