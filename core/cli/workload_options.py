"""The options that say what is asked of an engine, shared by every command that measures or simulates one."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..lab.workload import Workload

FIXED, SHARED_PREFIX, CONVERSATIONS = "fixed", "shared-prefix", "conversations"
TRACE, PROMPTS = "a trace", "prompts"
MADE = (FIXED, SHARED_PREFIX, CONVERSATIONS)

NUM_REQUESTS, INPUT_LEN, OUTPUT_LEN, NUM_TURNS, PREFIX_LEN = 64, 128, 64, 4, 512
"""Where nothing is said of a workload that is made."""

LENGTHS = ("input_len", "output_len")
TAKES = {
    FIXED: LENGTHS,
    SHARED_PREFIX: (*LENGTHS, "prefix_len", "num_prefixes"),
    CONVERSATIONS: (*LENGTHS, "prefix_len", "num_turns"),
    TRACE: ("time_scale", "length_scale", "max_len"),
    PROMPTS: ("output_len", "chat"),
}
"""Options that mean something to each kind; all of them take the number of requests, arrivals and seed."""
OWN = tuple(dict.fromkeys(option for options in TAKES.values() for option in options))


def add_workload_options(parser: ArgumentParser, *, has_rate: bool = True) -> None:
    """has_rate: whether it is the user who says how fast requests come."""
    group = parser.add_argument_group("what is asked")

    def add(name: str, kind: type, metavar: str, text: str) -> None:
        group.add_argument(name, type=kind, metavar=metavar, help=text)

    group.add_argument(
        "--workload",
        metavar="WHAT",
        help=f"{', '.join(MADE)} (random tokens; default {FIXED}), or a file: a trace (CSV or JSONL of lengths and "
        "times), or prompts (JSONL such as MT-bench or GSM8K, or a text with one a line)",
    )
    add(
        "--num-requests",
        int,
        "N",
        f"requests; a conversation counts as one (default {NUM_REQUESTS}, of a file all it has)",
    )
    add("--input-len", int, "N", f"prompt tokens of each request or turn (default {INPUT_LEN})")
    add("--output-len", int, "N", f"tokens to generate for each (default {OUTPUT_LEN})")
    add("--prefix-len", int, "N", f"tokens that prompts begin with alike (default {PREFIX_LEN}; of conversations 0)")
    add("--num-prefixes", int, "N", "how many such beginnings there are (default 1)")
    add("--num-turns", int, "N", f"turns of a conversation (default {NUM_TURNS})")
    add("--time-scale", float, "X", "factor for the times of a trace: 0.5 is twice the load (default 1)")
    add("--length-scale", float, "X", "factor for its lengths (default 1)")
    add("--max-len", int, "N", "leave out its requests of more tokens, prompt and output")
    group.add_argument("--chat", action="store_true", default=None, help="send single prompts as conversations too")
    if has_rate:
        add("--rate", float, "R", "requests a second (default: all at once, of a trace its own times)")
        add("--clients", int, "N", "instead of a rate: so many clients, each of which asks again when it is answered")
    else:
        parser.set_defaults(rate=None, clients=None)
    add("--variation", float, "V", "how unevenly they come: 0 evenly, 1 Poisson, more in bursts (default 1)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="draws tokens and times (default 0)")
    group.add_argument("--stop-at-eos", action="store_true", help="let the model end its outputs earlier")


def workload_from(arguments: Namespace) -> Workload:
    """The workload that these options ask for. Raises ConfigError, also for an option that would have no effect."""
    from ..lab.arrivals import POISSON, Arrivals
    from ..lab.traces import from_trace
    from ..lab.workloads import conversations, fixed, from_prompts, shared_prefix

    kind = kind_of(arguments.workload)
    check_effect(arguments, kind)
    if arguments.variation is not None and arguments.rate is None:
        raise ConfigError("--variation has no effect without --rate")
    given = arguments.rate, arguments.variation, arguments.clients
    arrivals = Arrivals(
        rate=math.inf if arguments.rate is None else arguments.rate,
        variation=POISSON if arguments.variation is None else arguments.variation,
        num_clients=arguments.clients,
    )
    common: dict[str, Any] = {"seed": arguments.seed, "arrivals": arrivals, "ignore_eos": not arguments.stop_at_eos}
    count = NUM_REQUESTS if arguments.num_requests is None else arguments.num_requests
    lengths = either(arguments.input_len, INPUT_LEN), either(arguments.output_len, OUTPUT_LEN)
    if kind == FIXED:
        return fixed(count, *lengths, **common)
    if kind == SHARED_PREFIX:
        prefix_len, num_prefixes = either(arguments.prefix_len, PREFIX_LEN), either(arguments.num_prefixes, 1)
        return shared_prefix(count, prefix_len, *lengths, num_prefixes=num_prefixes, **common)
    if kind == CONVERSATIONS:
        num_turns, prefix_len = either(arguments.num_turns, NUM_TURNS), either(arguments.prefix_len, 0)
        return conversations(count, num_turns, *lengths, prefix_len=prefix_len, **common)
    path = Path(arguments.workload)
    if kind == PROMPTS:
        chat = bool(arguments.chat)
        return from_prompts(path, lengths[1], num_requests=arguments.num_requests, chat=chat, **common)
    return from_trace(
        path,
        num_requests=arguments.num_requests,
        time_scale=either(arguments.time_scale, 1.0),
        length_scale=either(arguments.length_scale, 1.0),
        max_len=arguments.max_len,
        **{**common, "arrivals": None if given == (None, None, None) else arrivals},
    )


def kind_of(workload: str | None) -> str:
    """Which of the kinds of `TAKES` it is. Raises ConfigError."""
    if workload is None or workload in MADE:
        return workload or FIXED
    path = Path(workload)
    if not path.is_file():
        raise ConfigError(f"--workload {workload} is neither a file nor one of {', '.join(MADE)}")
    from ..lab.trace_files import is_trace

    return TRACE if is_trace(path) else PROMPTS


def check_effect(arguments: Namespace, kind: str) -> None:
    """Raise ConfigError for an option that the kind of workload does not read."""
    for option in OWN:
        if getattr(arguments, option) is not None and option not in TAKES[kind]:
            name = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{name} has no effect on a workload of {kind}: leave it out, or name another --workload")
    if kind == TRACE and arguments.time_scale is not None and (arguments.rate or arguments.clients):
        raise ConfigError("--time-scale has no effect beside --rate or --clients, which replace the times of the trace")


def either(given: Any, default: Any) -> Any:
    return default if given is None else given
