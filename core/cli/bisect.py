"""`switchgear bisect`: which plugins make the engine behave otherwise than without them."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .command import Command
from .options import add_config_options, config_from
from .workload_options import add_workload_options, workload_from

if TYPE_CHECKING:
    from ..config import Config
    from ..lab.behaviour import Behaviour
    from ..lab.bisect import Bisected
    from ..lab.measured import Runner
    from ..lab.workload import Workload

NUM_OUTPUT = 64


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what behaves differently: outputs of prompts or of a workload, or a metric")
    group.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="a prompt; several are asked at once (repeatable)"
    )
    group.add_argument("--raw", action="store_true", help="complete prompts as they are, without the chat template")
    group.add_argument("--max-tokens", type=int, default=NUM_OUTPUT, help="of each prompt (default: %(default)s)")
    group.add_argument(
        "--threshold",
        metavar="METRIC>VALUE",
        help="a metric of the workload past a value, such as ttft_p99>0.5, or tpot_p50>2x of everything-off's",
    )
    group.add_argument("--runs", type=int, default=3, help="runs of which the median counts (default: %(default)s)")
    group.add_argument("--cache", metavar="WHICH", help="cold, warm or cold,warm (default: both, of a metric cold)")
    group.add_argument(
        "--strict", action="store_true", help="any other token counts, also where everything-off is undecided"
    )
    group.add_argument(
        "--keep", action="append", default=[], metavar="NAME", help="leave a plugin on throughout (repeatable)"
    )
    add_workload_options(parser)
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    config = config_from(arguments)
    from ..lab.arms import common_of, fixed_common
    from ..lab.bisect import Bisection
    from ..lab.measured import ProcessRunner

    common = fixed_common(common_of(config, arguments.keep), ())
    workload = prompts_workload(arguments) if arguments.prompt else workload_from(arguments)
    behaviour = behaviour_of(arguments, ProcessRunner(), workload, common.off())
    found = Bisection(common, behaviour, tell).run()
    print(f"{' + '.join(found.switches)}: {found.text}")
    print(f"Without any one of them it is as with everything off. {found.num_trials} sets were tried.")
    for on, reason in found.refused.items():
        print(f"not known of {', '.join(on)}: {reason}")
    print(f"\nAgain: {reproduction(sys.argv[1:], config, found)}")
    return 0


def prompts_workload(arguments: Namespace) -> Workload:
    """The prompts, all at once, each in the chat template unless they are raw. Raises ConfigError."""
    from ..lab.workload import ALONE, Ask, Workload

    if arguments.workload is not None:
        raise ConfigError("--prompt and --workload were both given: name one of them")
    if arguments.max_tokens < 1 or not all(arguments.prompt):
        raise ConfigError("a prompt must not be empty, and --max-tokens must be at least 1")
    asks = tuple(
        Ask(0.0, arguments.max_tokens, text=text, conversation=ALONE if arguments.raw else number, ignore_eos=False)
        for number, text in enumerate(arguments.prompt)
    )
    return Workload("prompts", asks)


def behaviour_of(arguments: Namespace, runner: Runner, workload: Workload, off: Config) -> Behaviour:
    """What to ask of every set. Raises ConfigError."""
    from ..lab.behaviour import OtherOutputs, PastThreshold, parse_threshold
    from ..lab.study import check_caches

    if arguments.threshold is None:
        caches = check_caches(arguments.cache or "cold,warm")
        return OtherOutputs(runner, workload, off, caches, arguments.strict)
    if arguments.strict:
        raise ConfigError("--strict has no effect with --threshold, which looks at a metric and not at the outputs")
    if arguments.runs < 1:
        raise ConfigError(f"--runs is {arguments.runs}: a metric needs at least one run")
    caches = check_caches(arguments.cache or "cold")
    if len(caches) > 1:
        raise ConfigError("a metric is measured with one state of the caches: give --cache cold or --cache warm")
    threshold = parse_threshold(arguments.threshold)
    return PastThreshold(runner, workload, off, caches[0], threshold, arguments.runs)


def reproduction(argv: Sequence[str], config: Config, found: Bisected) -> str:
    """The same command with nothing on but what it takes."""
    on = [entry.name for entry in config.plugins]
    more = [word for name in found.switches if name not in on for word in ("--on", name)]
    less = [word for name in on if name not in found.switches and name not in found.kept for word in ("--off", name)]
    return shlex.join(["switchgear", *argv, *more, *less])


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(
    "bisect",
    "Find the plugins that make the engine behave otherwise.",
    add_options,
    run,
    "Tries sets of plugins, each in a fresh process, until none can be left out: outputs other than everything-off's "
    "where that is sure of its own, or a metric past --threshold.",
)
