"""docs/report.md: its commands run, and it names the sections, pictures and tables that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from switchgear.core.cli.main import make_parser
from switchgear.core.lab.report.page import resource
from switchgear.core.lab.report.spreadsheets import FILES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "report.md").read_text()
[BLOCK] = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [shlex.split(line, comments=True) for line in BLOCK.splitlines()]


def rows(title: str) -> list[str]:
    """The first cells of the table of a section."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[3])
def test_the_commands_are_ones(command: list[str]) -> None:
    program, *arguments = command
    parsed = make_parser().parse_args(arguments)
    assert program == "switchgear" and str(parsed.file) == "results.jsonl"
    assert getattr(parsed, command[3].removeprefix("--")) == Path(command[4])


def test_every_section_of_a_report_has_its_row() -> None:
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", resource("page.html.jinja"))
    assert rows("The page") == headings


def test_every_table_has_its_row() -> None:
    assert rows("Tables") == [f"`{name}.csv`" for name in FILES]
