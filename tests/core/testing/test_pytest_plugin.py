"""`pytest --switchgear-plugin NAME`, as a plugin's author runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import switchgear.testing
from switchgear.core import testing as kit

ROOT = Path(__file__).resolve().parents[3]
CONTRIB = ROOT / "contrib" / "switchgear-shortest-first"
HEAVY = {"gguf", "huggingface_hub", "tokenizers", "torch", "transformers", "triton"}


def run_pytest(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_whole_kit_on_the_plugin_in_contrib() -> None:
    done = run_pytest("-v", "--switchgear-plugin", "shortest_first", "-m", "switchgear", folder=CONTRIB)
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout and "skipped" not in done.stdout
    for check in ("contract::says_what_it_is", "equivalence::with_prefix_cache", "leaks::aborted_held"):
        assert f"shortest_first::{check} PASSED" in done.stdout


def test_options_reach_the_plugin_and_a_failure_is_text_for_its_author(tmp_path: Path) -> None:
    option = "plugins.shortest_first.max_wait=soon"
    done = run_pytest(
        "--switchgear-plugin", "shortest_first", "--switchgear-set", option, "-k", "starts or says", folder=tmp_path
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "no engine starts with shortest_first: [plugins.shortest_first]: Expected `float`" in done.stdout
    assert "Traceback" not in done.stdout and "contract.py" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--switchgear-plugin", "shortest_frst"], "did you mean 'shortest_first'?"),
        (["--switchgear-plugin", "paged_kv", "--switchgear-set", "plugins.other.x=1"], "plugin 'other' is not on"),
    ],
)
def test_what_does_not_exist_is_said_at_once(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run_pytest(*arguments, folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in done.stdout + done.stderr


def test_it_adds_nothing_unless_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("import sys\n\n\ndef test_mine(): assert 'torch' not in sys.modules\n")
    done = run_pytest("-q", folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_importing_the_kit_loads_no_heavy_library() -> None:
    code = (
        "import json, sys, switchgear.testing, switchgear.core.testing.pytest_plugin; print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY.intersection(json.loads(done.stdout)) == set()


def test_every_name_of_the_kit_is_there_under_both_names() -> None:
    assert switchgear.testing.__all__ == kit.__all__ == sorted(kit.MODULE_OF)
    for name in kit.__all__:
        assert getattr(switchgear.testing, name) is getattr(kit, name)
