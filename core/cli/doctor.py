"""`switchgear doctor`: what this machine can and cannot do, and why; or what a running server could do better."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from ..errors import ConfigError
from .command import Command
from .output import print_json


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")
    group = parser.add_argument_group("a running server instead of this machine")
    group.add_argument(
        "--from",
        dest="source",
        metavar="METRICS_URL",
        help="walk the operator's checklist over a server's /metrics and /plan, or a file with the former",
    )
    group.add_argument(
        "--over",
        type=float,
        metavar="SECONDS",
        help="look twice and count what came between (default: since the server's start)",
    )
    group.add_argument(
        "--profile", type=Path, metavar="FILE", help="the cost model that `switchgear profile` wrote there"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file that holds nothing but a key")


def run(arguments: Namespace) -> int:
    if arguments.source is not None:
        from .server_checkup import run_checkup

        return run_checkup(arguments)
    if given := next(
        (name for name in ("over", "profile", "api_key_file") if getattr(arguments, name) is not None), ""
    ):
        raise ConfigError(f"--{given.replace('_', '-')} is about a running server: name it with --from")
    return diagnose_machine(arguments)


def diagnose_machine(arguments: Namespace) -> int:
    from .diagnosis import diagnose

    findings = diagnose()
    is_healthy = not any(finding.is_base and finding.state != "ok" for finding in findings)
    if arguments.json:
        print_json({"is_healthy": is_healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            text = "; ".join(filter(None, (finding.value, finding.effect)))
            print(f"{finding.state:<8}{finding.subject:<{width}}  {text}")
    return 0 if is_healthy else 1


COMMAND = Command(
    "doctor",
    "Say what this machine, or a running server, can and cannot do, and why.",
    add_options,
    run,
    "Exit code 1 if something is broken that nothing runs without; what is merely missing costs what its line says. "
    "With --from it reads a running server: why answers start late, why they come slowly, what is wasted.",
)
