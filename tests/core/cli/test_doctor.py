import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .ended import Install, RunCommand

PROGRAM = [sys.executable, "-c", "import sys; from switchgear.core.cli.main import main; sys.exit(main())"]


def findings(command: RunCommand) -> dict[str, dict[str, Any]]:
    return {finding["subject"]: finding for finding in command("doctor", "--json").json["findings"]}


def test_a_sound_machine_is_exit_code_0(command: RunCommand, empty_cache: Path) -> None:
    ended = command("doctor")
    assert (ended.code, ended.err) == (0, "")
    lines = {line[8:].split("  ")[0]: line for line in ended.out.splitlines()}
    assert torch.__version__ in lines["torch"] and "threads" in lines["torch"]
    assert lines["python"].startswith("ok ")
    assert lines["models"].startswith("missing ") and "switchgear pull" in lines["models"]
    assert {"processor", "memory", "kv by default", "dtype auto", "cuda", "c++ compiler", "cache"} <= set(lines)
    assert command("doctor", "--json").json["is_healthy"] is True


def test_what_is_missing_says_what_it_costs(command: RunCommand, empty_cache: Path) -> None:
    found = findings(command)
    for subject in ("triton", "bitsandbytes", "sentence-transformers", "hnswlib", "cuda"):
        assert found[subject]["state"] == "ok" or found[subject]["effect"]


def test_a_machine_without_a_compiler_says_so(command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    finding = findings(command)["c++ compiler"]
    assert (finding["state"], finding["value"]) == ("missing", "none of c++, g++, clang++")
    assert "native CPU kernels" in finding["effect"]


def test_an_optional_package_is_found_without_importing_it(
    command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hnswlib.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert findings(command)["hnswlib"]["state"] == "ok"


def test_a_broken_plugin_is_told_and_does_not_make_the_machine_ill(command: RunCommand, install: Install) -> None:
    install("lost", "raise ImportError('libmissing.so')")
    finding = findings(command)["plugin lost"]
    assert finding["state"] == "broken"
    assert "lost-distribution 1.2 cannot be imported: ImportError: libmissing.so" in finding["value"]
    assert command("doctor").code == 0


def test_two_plugins_of_one_name_are_told(command: RunCommand, install: Install) -> None:
    install("lost", "")
    twin = install("twin", "") / "twin_distribution-1.2.dist-info" / "entry_points.txt"
    twin.write_text("[switchgear.plugins]\nlost = twin_module:Plugin\n")
    assert "is taken twice" in findings(command)["plugins"]["value"]


def test_a_cache_that_cannot_be_written_is_exit_code_1(
    command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert findings(command)["cache"]["state"] == "broken"
    assert "XDG_CACHE_HOME" in findings(command)["cache"]["effect"]
    assert command("doctor").code == 1


def test_a_torch_that_cannot_be_imported_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([*PROGRAM, "doctor"], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "")
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("broken")]
    assert line.split(maxsplit=2)[1:] == [
        "torch",
        "cannot be imported: OSError: libtorch.so: cannot open; nothing runs; install it again: pip install torch",
    ]
