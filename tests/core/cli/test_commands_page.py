"""docs/commands.md says something about every command, and about no other."""

import re
from pathlib import Path

from switchgear.core.cli.main import COMMANDS
from switchgear.core.cli.plan import DEGRADED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_every_command_has_a_heading() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings[1:] == [command.name for command in COMMANDS]


def test_the_exit_code_of_a_degraded_plan_is_told() -> None:
    assert f"| {DEGRADED} | `plan` only" in PAGE
