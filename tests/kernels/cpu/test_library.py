"""The library is the one of these sources or none, and shares torch's threads."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu.library import Library, Unusable, load, native

ROOT = Path(__file__).resolve().parents[3]

COUNT_THREADS = """
import os, torch
from switchgear.kernels.cpu.linear import linear, pack
def num_threads(): return len(os.listdir("/proc/self/task"))
torch.set_num_threads(3)
torch.rand(1000, 1000).sigmoid()
before = num_threads()
packed, x = pack(torch.rand(2000, 500)), torch.rand(50, 500)
for _ in range(20): linear(x, packed); torch.rand(1000, 1000).sigmoid()
print(before, num_threads())
"""


def sources_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, taken for those that lie beside the library."""
    for path in (*build.FOLDER.glob("*.cpp"), *build.FOLDER.glob("*.h")):
        shutil.copy(path, folder)
    monkeypatch.setattr(build, "FOLDER", folder)
    return folder


def test_a_library_of_the_same_sources_is_used(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.FOLDER / build.LIBRARY
    sources_in(tmp_path, monkeypatch)
    assert load(path).level == library.level


@pytest.mark.parametrize("changed", ["linear.cpp", "linear_tiles.h", "new.cpp"])
def test_a_stale_library_is_never_used(
    changed: str, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.FOLDER / build.LIBRARY
    with (sources_in(tmp_path, monkeypatch) / changed).open("a") as file:
        file.write("// changed\n")
    with pytest.raises(Unusable, match=r"built from other sources than these; .* python -m switchgear.kernels.cpu"):
        load(path)


def test_a_library_without_sources_beside_it_is_one_that_was_installed(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.FOLDER / build.LIBRARY
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert load(path).level == library.level
    with pytest.raises(Unusable, match="are not built; install switchgear again where there is a C"):
        load(tmp_path / build.LIBRARY)


def test_a_library_that_is_absent_or_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="the native kernels are not built; with a C"):
        load(tmp_path / "absent.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(Unusable, match="cannot be loaded"):
        load(tmp_path / "text.so")


def test_the_hash_covers_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.source_hash()
    monkeypatch.setitem(build.FLAGS_OF, "avx2", ("-mavx2",))
    assert build.source_hash() != before


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.build(tmp_path / build.LIBRARY)
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(build.BuildError, match="cannot be run"):
        build.build(tmp_path / build.LIBRARY)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_leaves_the_old_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'no such instruction' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    target = tmp_path / build.LIBRARY
    target.write_text("old")
    with pytest.raises(build.BuildError, match="no such instruction"):
        build.build(target)
    assert target.read_text() == "old"


def test_another_machine_has_no_native_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(build.BuildError, match="no native kernels"):
        build.build(tmp_path / build.LIBRARY)


def test_pyproject_names_every_source() -> None:
    (extension,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    assert extension["sources"] == [f"kernels/cpu/{path.name}" for path in build.sources()]
    assert extension["depends"] == [f"kernels/cpu/{path.name}" for path in sorted(build.FOLDER.glob("*.h"))]
    assert extension["optional"] is True


def test_the_kernels_run_on_the_threads_that_torch_has(library: Library) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", COUNT_THREADS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert before == after >= 3


def test_the_level_is_one_that_the_kernel_reports(library: Library) -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    name = {"avx512": "avx512f"}.get(library.level_name, library.level_name)
    assert name in flags and native() is library


@pytest.mark.slow
def test_an_install_without_a_compiler_goes_on_without_kernels(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.so")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", str(tree)]
    environment = {**os.environ, "CXX": str(tmp_path / "absent")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*-abi3-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "switchgear/kernels/cpu/library.py" in names
    assert not [name for name in names if name.endswith((".so", ".cpp", ".h"))]
