"""docs/ablation.md names the designs that there are, its commands parse, and its Python runs."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest
from switchgear.core.cli import ablate, bisect
from switchgear.core.lab.designs import DESIGNS
from switchgear.core.lab.results_file import KINDS

from ..core.lab.made_results import write_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ablation.md").read_text()
COMMANDS = {"ablate": ablate.COMMAND, "bisect": bisect.COMMAND}


def first_column(header: str) -> list[str]:
    table = PAGE.partition(f"| {header} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([\w-]+)`", table, flags=re.MULTILINE)


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line]


def test_every_design_and_every_kind_of_row_is_there() -> None:
    assert sorted(first_column("`--design`")) == sorted(DESIGNS)
    assert tuple(first_column("row")) == KINDS


@pytest.mark.parametrize("command", [words for words in commands() if words[1] in COMMANDS], ids=" ".join)
def test_the_commands_parse(command: list[str]) -> None:
    parser = ArgumentParser(allow_abbrev=False)
    COMMANDS[command[1]].add_options(parser)
    parser.parse_args(command[2:])


def test_every_option_that_is_named_exists() -> None:
    parser = ArgumentParser()
    for command in COMMANDS.values():
        text = ArgumentParser()
        command.add_options(text)
        parser.epilog = (parser.epilog or "") + text.format_help()
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert len(named) >= 10
    assert [option for option in named if option not in str(parser.epilog)] == []


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path / "results.jsonl")
    [code] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    with pytest.raises(AssertionError):
        # the made file has a broken arm, so that the last line can fail
        exec(code, {})
    assert "prefix_cache: ttft_p50 x 0.4" in capsys.readouterr().out
