"""The page about profiles: its commands exist, its code runs, its figures are the code's."""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.cli import doctor, profile
from switchgear.core.lab.checklist import FIRST_TOKEN, PER_TOKEN, WEEKLY
from switchgear.core.lab.cost_model import CostModel, Curve
from switchgear.core.lab.objective_config import ENOUGH
from switchgear.core.lab.thresholds import DEPARTURE, DISTURBANCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "profile.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_have_options_that_exist(command: str) -> None:
    program, name, *words = shlex.split(command)
    assert program == "switchgear"
    parser = ArgumentParser(allow_abbrev=False)
    {"profile": profile, "doctor": doctor}[name].COMMAND.add_options(parser)
    parser.parse_args(words)


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = CostModel("m", "s", "none", fixed=0.01, tokens=Curve((1, 100), (0.0, 0.1)))
    Path("cost.json").write_text(json.dumps(model.to_json()))
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert names["model"].name == "llama2-70b"


def test_the_rules_have_the_factors_of_the_code() -> None:
    assert f"more than {1 + DEPARTURE:g} times the line" in PAGE
    assert f"more than {1 + DISTURBANCE:g} times as long as the same decodes alone" in PAGE
    assert f"the fewest rows that give {100 * ENOUGH:.0f} % of the best rate" in PAGE
    assert f"within {100 * DEPARTURE:.0f} % of the shortest" in PAGE


def test_every_question_of_the_checklist_has_a_row() -> None:
    assert re.findall(r"^\| ([\w ]+) \| (?:quantiles|are)", PAGE, re.MULTILINE) == [FIRST_TOKEN, PER_TOKEN, WEEKLY]
