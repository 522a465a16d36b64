"""Small rules of form that no linter keeps."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("core", "kernels", "plugins")
EVERYWHERE = (*PACKAGE, "contrib", "docs", "tests", ".ci")
MAX_LINES = 400
NAMES_A_PLACE = re.compile(
    r"""
    (?<![\w.])/(work|root|home|opt)/    # a path of one machine
    | https?://[^\s/]*(pypi|pythonhosted|anaconda)\b    # a registry's host
    | --(extra-)?index-url | --find-links    # where one machine gets its packages from
    """,
    re.VERBOSE,
)


def files(folders: tuple[str, ...], *suffixes: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            is_made = any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
            if path.suffix in suffixes and path.is_file() and not is_made:
                yield path


def sources() -> Iterator[Path]:
    yield ROOT / "__init__.py"
    yield from files(EVERYWHERE, ".py")


def texts() -> Iterator[Path]:
    """Everything a person reads, but for the file that spells the forbidden out."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*.t[ox]*"), ROOT / "Makefile", ROOT / "__init__.py"):
        yield path
    for path in files(EVERYWHERE, ".py", ".md", ".toml", ".cpp", ".h", ".txt", ""):
        if path != Path(__file__).resolve():
            yield path


def not_ascii(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.isascii()]


def num_lines(text: str) -> int:
    """Lines that hold something, so that nobody saves on blank ones."""
    return sum(bool(line.strip()) for line in text.splitlines())


def places(text: str) -> list[str]:
    return [match.group() for match in NAMES_A_PLACE.finditer(text)]


def undocumented_fields(source: str) -> list[str]:
    """Fields of config classes, as Class.field, without a docstring under them."""
    missing = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.ClassDef) and any(is_config(ast.unparse(base)) for base in node.bases)):
            continue
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and not is_text(after):
                missing.append(f"{node.name}.{ast.unparse(field.target)}")
    return missing


def is_config(base: str) -> bool:
    return base.rpartition(".")[2] in ("PluginConfig", "ModelConfig", "EngineConfig")


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def undocumented(source: str) -> list[str]:
    """The module, its public classes and the methods that are hooks or specs of hooks, where they say nothing."""
    tree = ast.parse(source)
    nodes: list[ast.Module | ast.ClassDef | ast.FunctionDef] = [tree]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "HookSpecs":
            nodes.append(node)
        nodes += [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef) and "hookspec" in map(ast.unparse, child.decorator_list)
        ]
    return [getattr(node, "name", "module") for node in nodes if not ast.get_docstring(node)]


def test_sources_are_ascii() -> None:
    assert {str(path): bad for path in sources() if (bad := not_ascii(path.read_text("utf-8")))} == {}


def test_no_file_is_a_drawer_for_everything() -> None:
    assert [path for path in sources() if path.stem in ("utils", "util", "helpers", "misc", "common")] == []


def test_no_file_of_the_package_is_long() -> None:
    lengths = {str(path): num_lines(path.read_text()) for path in files(PACKAGE, ".py")}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_names_a_machine_or_a_registry() -> None:
    assert {str(path): bad for path in texts() if (bad := places(path.read_text("utf-8")))} == {}


def test_every_config_field_says_what_it_is() -> None:
    assert {str(path): bad for path in sources() if (bad := undocumented_fields(path.read_text()))} == {}


def test_hooks_and_plugins_say_what_they_are() -> None:
    paths = [ROOT / "core" / "hooks.py", *files(("plugins",), ".py"), *(ROOT / "contrib").glob("*/*.py")]
    paths = [path for path in paths if path.name != "__init__.py"]
    assert {str(path): bad for path in paths if (bad := undocumented(path.read_text()))} == {}


def test_contributing_names_tests_that_exist() -> None:
    named = set(re.findall(r"(test_\w+\.py)(?:::(test_\w+))?", (ROOT / "CONTRIBUTING.md").read_text()))
    guards = {path.name: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}
    assert {file for file, _ in named} == set(guards)
    assert [test for file, test in named if f"def {test}" not in guards[file]] == []


@pytest.mark.parametrize(
    "text",
    ["see /work/main", "open('/root/x')", "https://pypi.org/simple", "pip install --extra-index-url x"],
)
def test_a_named_place_is_seen(text: str) -> None:
    assert places(text)


def test_an_ordinary_path_is_no_place() -> None:
    assert places("tests/work/x, github.com/root/home, ~/.cache, https://example.org/v1") == []


def test_other_lapses_are_seen() -> None:
    assert not_ascii("plain\nna\u00efve") == ["na\u00efve"]
    config = (
        "class Config(PluginConfig):\n    a: int = 1\n    'What it is.'\n    b: int = 2\n    c: int = 3\n    'Too.'"
    )
    assert undocumented_fields(config) == ["Config.b"]
    assert undocumented("class A:\n    @hookspec\n    def route(self): ...") == ["module", "A", "route"]
