"""Commands in this process, and plugin distributions that are really installed, for the length of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from switchgear.core.cli.main import main

from .ended import Ended, Install, RunCommand

HEAD = """
from typing import Annotated, Any
import msgspec
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Refusal
"""
"""What every plugin's module starts with."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    def run(*arguments: str | Path) -> Ended:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution whose plugin is the class `Plugin` of `source`; returns the folder it lies in."""
    installed = []

    def install_plugin(name: str, source: str) -> Path:
        site = tmp_path / "site" / name
        module = f"{name}_module"
        information = site / f"{name}_distribution-1.2.dist-info"
        information.mkdir(parents=True)
        (site / f"{module}.py").write_text(HEAD + source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-distribution\nVersion: 1.2\n")
        (information / "entry_points.txt").write_text(f"[switchgear.plugins]\n{name} = {module}:Plugin\n")
        monkeypatch.syspath_prepend(site)
        installed.append(module)
        return site

    yield install_plugin
    for module in installed:
        sys.modules.pop(module, None)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with nothing in it, which the commands use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "switchgear"
