"""The code of docs/plugins/writing.md makes a distribution that installs, switches on and passes its own tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins" / "writing.md").read_text()


def files_of_page() -> dict[str, str]:
    """The page's named code blocks: a file name in backticks and a colon, then the block."""
    return dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.slow
def test_the_page_from_nothing_to_passing_tests(tmp_path: Path) -> None:
    files = files_of_page()
    assert set(files) == {"pyproject.toml", "switchgear_longest_first.py", "test_longest_first.py"}
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name, text in files.items():
        (project / name).write_text(text)
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "."]
    subprocess.run([sys.executable, "-m", *install], cwd=project, check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_longest_first.py"]
    done = subprocess.run(tests, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

    listing = [sys.executable, "-m", "switchgear", "plugins", "longest_first"]
    shown = subprocess.run(listing, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    assert "at_least" in shown.stdout and "Only prompts of at least this many tokens" in shown.stdout
