"""What `bench load` and `bench max-rate` share: what is measured, what is expected of it, and how runs are told."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .bench_options import print_heading, stamp
from .options import add_config_options, config_from

if TYPE_CHECKING:
    from ..lab.bench_run import OnServed, Run
    from ..lab.objective import Objective
    from ..lab.served import Served
    from ..lab.targets import Target
    from ..lab.workload import Workload

ONLY_HERE = ("config", "recipe", "on", "off", "set", "dtype")
"""Options of an engine in this process; a server has its own."""
ONLY_THERE = ("api_key_file", "vocab_size", "request_seconds")


def add_target_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured (without --url: an engine in this process)")
    group.add_argument("--url", metavar="URL", help="a server with OpenAI's API; --model is the name that it serves")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="the key that the server asks for")
    group.add_argument(
        "--vocab-size", type=int, metavar="N", help="of the served model, for random tokens (default 32000)"
    )
    group.add_argument(
        "--request-seconds", type=float, metavar="S", help="after which a request has failed (default 600)"
    )
    add_config_options(parser)


def add_objective_options(parser: ArgumentParser, *, required: bool) -> None:
    group = parser.add_argument_group("the objective")
    group.add_argument("--ttft", type=float, metavar="S", required=required, help="bound on the time to first token")
    group.add_argument("--tpot", type=float, metavar="S", required=required, help="bound on the time of each after it")


def objective_from(arguments: Namespace) -> Objective | None:
    """The objective that was asked for. Raises ConfigError for half of one."""
    from ..lab.objective import Objective

    if arguments.ttft is None and arguments.tpot is None:
        return None
    if arguments.ttft is None or arguments.tpot is None:
        raise ConfigError("an objective needs both --ttft and --tpot")
    return Objective(arguments.ttft, arguments.tpot)


def add_price_option(parser: ArgumentParser, of_what: str) -> None:
    parser.add_argument("--price-per-hour", type=float, metavar="P", help=f"of {of_what}: adds the price of tokens")


def price_from(arguments: Namespace) -> float | None:
    """What an hour costs, if that was said. Raises ConfigError."""
    price: float | None = arguments.price_per_hour
    if price is not None and not 0 <= price < math.inf:
        raise ConfigError(f"--price-per-hour is {price:g}: it must be 0 or more")
    return price


def target_from(arguments: Namespace, workload: Workload) -> Target:
    """What was asked for, ready and warm. Raises SwitchgearError."""
    from ..lab.over_http import REQUEST_SECONDS, VOCAB_SIZE
    from ..lab.targets import EngineTarget, ServerTarget

    unread = ONLY_THERE if arguments.url is None else ONLY_HERE
    if given := next((name for name in unread if getattr(arguments, name) not in (None, [])), None):
        where = "without --url" if arguments.url is None else "with --url, since a server has its own config"
        raise ConfigError(f"--{given.replace('_', '-')} has no effect {where}: leave it out")
    if arguments.url is None:
        return EngineTarget(config_from(arguments))
    return ServerTarget(
        arguments.url,
        workload,
        model=arguments.model,
        api_key=read_key(arguments.api_key_file),
        vocab_size=VOCAB_SIZE if arguments.vocab_size is None else arguments.vocab_size,
        request_seconds=REQUEST_SECONDS if arguments.request_seconds is None else arguments.request_seconds,
    )


def read_key(file: Path | None) -> str:
    """The first line of the file; nothing without one. Raises ConfigError."""
    if file is None:
        return ""
    try:
        key, *_ = [*file.read_text(encoding="ascii").split(), ""]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    if not key:
        raise ConfigError(f"{file} has no key in it")
    return key


# -- telling --------------------------------------------------------------------------------------------------------


def about_target(target: Target) -> dict[str, Any]:
    """What a figure in JSON is worth nothing without. Of a server the machine is the client's."""
    from ..lab.machine import this_machine, versions

    machine = this_machine()
    if target.plan is not None:
        return {"target": target.name, **stamp(target.plan, machine, versions())}
    return {"target": target.name, "client_versions": versions(), "client_machine": asdict(machine)}


def print_target(target: Target, workload: Workload) -> None:
    """The same for a person."""
    from ..lab.machine import this_machine, versions

    about = "  ".join(f"{name} {value}" for name, value in workload.about.items() if name != "workload")
    notes = [f"asked    {workload.name} ({workload.fingerprint})  {about}"]
    if target.plan is not None:
        print_heading(target.plan, this_machine(), versions(), notes)
        return
    print(f"server   {target.name}")
    print(f"client   {this_machine()}")
    print(*notes, sep="\n", end="\n\n")


def about_workload(workload: Workload) -> dict[str, Any]:
    return {"workload": {"name": workload.name, "fingerprint": workload.fingerprint, "about": dict(workload.about)}}


def about_run(run: Run) -> dict[str, Any]:
    """What a run knows of whoever served it."""
    return {"plan": run.plan_hash, "environment": run.environment, "is_whole": run.is_whole}


@contextmanager
def progress(num_requests: int, label: str, then: OnServed | None = None) -> Iterator[OnServed]:
    """A bar of requests on standard error where that is a terminal. then: told of each request as well."""
    from tqdm import tqdm

    num_tokens = 0
    with tqdm(total=num_requests, desc=label, unit="request", leave=False, disable=None, file=sys.stderr) as bar:

        def tell(served: Served) -> None:
            nonlocal num_tokens
            num_tokens += served.num_output
            if then is not None:
                then(served)
            bar.set_postfix(tokens=num_tokens, refresh=False)
            bar.update()

        yield tell
