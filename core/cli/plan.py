"""`switchgear plan`: what would run, hook by hook, without loading a weight."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .command import Command
from .options import add_config_options, config_from
from .output import print_json

DEGRADED = 3


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    from ..gateway.llm import LLM

    with LLM.from_config(config_from(arguments), load=False) as llm:
        if arguments.json:
            print_json(llm.plan.to_json())
        else:
            print(llm.plan)
        return DEGRADED if llm.plan.degraded else 0


COMMAND = Command(
    "plan",
    "Print the effective plan: who owns each hook, and why.",
    add_options,
    run,
    "Exit code 0: everything that was asked for has effect. 1: refused, with the reason. "
    f"{DEGRADED}: a plugin is without full effect, as the plan says: the recipe brought it, or [engine] allow_degrade "
    "is set.",
)
