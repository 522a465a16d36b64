"""What is on disk is what is shipped: the wheel leaves out no folder, plugin or marker, and holds nothing else."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("core", "kernels", "plugins")
PINNED = re.compile(r"^([\w-]+)==(\S+)$", re.MULTILINE)
DOCUMENTED = re.compile(r"^\| ([\w-]+) (?:\| `\[\w+\]` )?\| ([\d.]+) \|", re.MULTILINE)


def sources_of(tree: Path) -> list[Path]:
    return sorted(path.relative_to(tree) for folder in FOLDERS for path in (tree / folder).rglob("*.py"))


SOURCES = sources_of(ROOT)


def packages_of(files: Iterable[Path]) -> set[str]:
    """The packages that these files live in, whether or not their folders have an `__init__.py`."""
    return {".".join(("switchgear", *file.parent.parts)) for file in files}


def plugins_of(files: Iterable[Path]) -> set[str]:
    """A plugin is a public file directly in `plugins/`, or a public folder there."""
    names = {file.parts[1].removesuffix(".py") for file in files if file.parts[0] == "plugins"}
    return {name for name in names if not name.startswith("_")}


def versions_in(text: str, line: re.Pattern[str]) -> dict[str, str]:
    return {name.lower(): version for name, version in line.findall(text)}


def test_every_folder_is_a_package_that_is_shipped() -> None:
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted({"switchgear"} | packages_of(SOURCES))
    for folder in {file.parent for file in SOURCES}:
        assert folder / "__init__.py" in SOURCES, f"{folder} has no __init__.py"


def test_every_plugin_file_is_an_entry_point_of_its_own_name() -> None:
    entries = PROJECT["project"]["entry-points"]["switchgear.plugins"]
    assert set(entries) == plugins_of(SOURCES)
    for name, target in entries.items():
        assert target.startswith(f"switchgear.plugins.{name}:"), f"{name} points to {target}"


def test_the_root_holds_only_the_doors_of_the_package() -> None:
    """Every module in the root is shipped: the package, `python -m switchgear` and `switchgear.testing`."""
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "__main__.py", "testing.py"}


def test_every_folder_of_the_package_is_typed() -> None:
    for folder in ("", *FOLDERS):
        assert (ROOT / folder / "py.typed").is_file(), f"{folder or 'the root'} has no py.typed"
    for name in ("__init__.py", "py.typed", *FOLDERS):
        link = ROOT / ".typings" / "switchgear" / name
        assert link.resolve() == ROOT / name, f"{link} does not lead to {name}"


def test_every_dependency_is_tested_in_a_version_and_justified() -> None:
    project = PROJECT["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    tested = versions_in((ROOT / "constraints.txt").read_text(), PINNED)
    documented = versions_in((ROOT / "docs" / "dependencies.md").read_text(), DOCUMENTED)
    asked_for = {requirement.partition(">=")[0].lower() for requirement in requirements}
    assert documented == {name: tested.get(name) for name in asked_for}


def test_the_checks_see_what_they_look_for() -> None:
    files = [Path("core/lab/bench/run.py"), Path("plugins/__init__.py"), Path("plugins/paged_kv.py")]
    files += [Path("plugins/disaggregation/__init__.py"), Path("plugins/_shared.py")]
    assert "switchgear.core.lab.bench" in packages_of(files)
    assert plugins_of(files) == {"paged_kv", "disaggregation"}
    assert versions_in("Jinja2==3.1.6\n# a==1\n", PINNED) == {"jinja2": "3.1.6"}
    assert versions_in("| a | 1.2 | x |\n| b-c | `[quant]` | 3 | y |\n", DOCUMENTED) == {"a": "1.2", "b-c": "3"}


def run(arguments: Sequence[str], folder: Path) -> None:
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


REPORT = {f"switchgear/core/lab/report/{name}" for name in ("page.css", "page.html.jinja", "page.js")}


@pytest.mark.slow
def test_the_wheel_built_from_the_sdist_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.so")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    run(["-c", "from setuptools import build_meta; build_meta.build_sdist('..')"], tree)
    (sdist,) = tmp_path.glob("switchgear-*.tar.gz")
    run(["-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", str(sdist)], tmp_path)
    (wheel,) = tmp_path.glob("switchgear-*.whl")

    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {name.partition(".dist-info/")[2] for name in archive.namelist()} - {""}
    typed = {f"switchgear/{folder}/py.typed".replace("//", "/") for folder in ("", *FOLDERS)}
    doors = [path.relative_to(tree) for path in tree.glob("*.py")]
    modules = {f"switchgear/{file.as_posix()}" for file in [*doors, *sources_of(tree)]}
    assert {name for name in files if not name.endswith((".so", ".pyd"))} == modules | typed | REPORT
    assert {"licenses/LICENSE", "entry_points.txt", "METADATA"} <= metadata
