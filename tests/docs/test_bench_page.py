"""The page about load names every metric and every kind of workload, and its commands run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from switchgear.core.cli.main import main, make_parser
from switchgear.core.cli.workload_options import MADE
from switchgear.core.lab.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "bench.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
HERE = [command for command in COMMANDS if "--url" not in command]

AZURE = "".join(f"2023-11-16 18:15:{second:02}.6805900,{200 + 10 * second},40\n" for second in range(60))
MOONCAKE = '{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}\n'
FILES = {
    "azure_llm_2023_conv.csv": f"TIMESTAMP,ContextTokens,GeneratedTokens\n{AZURE}",
    "mooncake_conversation_trace.jsonl": 32 * MOONCAKE,
    "mt_bench.jsonl": 8 * '{"question_id": 81, "turns": ["Write.", "Again."]}\n',
}
"""As small as the commands allow, under the names that the page has."""


def test_every_metric_has_a_row_and_no_other_has() -> None:
    table = PAGE.partition("| metric | meaning |")[2].partition("\n\n")[0]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert named == list(METRICS)


def test_every_kind_that_is_made_has_a_row() -> None:
    table = PAGE.partition("| `--workload` | what it is |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(MADE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_have_options_that_exist(command: str) -> None:
    name, *words = shlex.split(command)
    assert name == "switchgear"
    make_parser().parse_args(words)


@pytest.mark.slow
@pytest.mark.parametrize("command", HERE)
def test_the_commands_run(
    command: str,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    # the last of two options counts; what is asked of a tiny model on a busy machine says nothing
    quick = ["--num-requests", "4"]
    if "max-rate" in words:
        quick += ["--max-probes", "1", "--first-rate", "1000", "--ttft", "1000", "--tpot", "1000"]
    for option, value in (("--rate", "1000"), ("--time-scale", "0.01")):
        quick += [option, value] if option in words else []
    tiny = ["--model", str(tiny_model), "--dtype", "float32", "--set", "engine.kv_bytes=8000000"]
    assert main([*words, *tiny, *quick]) == 0
    assert "requests/s" in capsys.readouterr().out
