"""What the README shows of the server works as printed, but for the port and what differs from call to call."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .served import Served, serving

ROOT = Path(__file__).resolve().parents[3]
SERVE = (ROOT / "README.md").read_text().partition("## Serve it")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SERVE, re.DOTALL)
PRINTED_AT = "http://127.0.0.1:8000"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(Path("smollm2-135m"), "--dtype", "auto") as served:
        yield served


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def run(command: list[str], served: Served) -> str:
    done = subprocess.run(
        [part.replace(PRINTED_AT, served.url) for part in command], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_gets_the_answer_that_is_shown(served: Served) -> None:
    shown = re.escape(blocks("json")[0].strip()).replace(r"\.\.\.", r"[\w-]+")
    assert re.fullmatch(shown, run(["sh", "-c", blocks("sh")[0]], served).strip())


def test_the_other_commands_answer(served: Served) -> None:
    answer = run(["sh", "-c", blocks("sh")[1]], served)
    stream, _, rest = answer.partition("data: [DONE]\n\n")
    pieces = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line]
    assert "".join(piece["choices"][0]["text"] for piece in pieces).startswith(" 4")
    assert '"hash":"' in rest and "switchgear_time_to_first_token_seconds" in rest


def test_langchain_needs_a_base_url_and_nothing_else(served: Served) -> None:
    answer = run([sys.executable, "-W", "ignore", "-c", blocks("python")[0]], served)
    first, _, second = answer.partition("\n")
    assert "Paris" in first and second.strip()
