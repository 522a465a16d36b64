"""`switchgear doctor`: what this machine can and cannot do, and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from .command import Command
from .output import print_json


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")


def run(arguments: Namespace) -> int:
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
    "Say what this machine can and cannot do, and why.",
    add_options,
    run,
    "Exit code 1 if something is broken that nothing runs without; what is merely missing costs what its line says.",
)
