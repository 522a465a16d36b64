"""What importing does, seen from fresh interpreters: quick, light, and in any order."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("core", "kernels", "plugins") for path in (ROOT / folder).rglob("*.py"))
MODULES = [
    ".".join(("switchgear", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__") for path in FILES
]
CONTRACT = ("config", "errors", "hooks", "interfaces", "plan", "records", "registry", "sampling_params")
LIGHT = tuple(f"switchgear.{part}." for part in ("plugins", "core.cli", *(f"core.{name}" for name in CONTRACT)))
HEAVY = {"gguf", "huggingface_hub", "tokenizers", "torch", "transformers", "triton"}

IMPORT_EACH = """
import importlib, json, os, sys, traceback, warnings
import torch
warnings.simplefilter("error")
failures = {}
for name in json.load(sys.stdin):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            os.write(writer, traceback.format_exc()[-4000:].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        failure = pipe.read()
    os.waitpid(child, 0)
    if failure:
        failures[name] = failure
print(json.dumps(failures))
"""
"""Imports each module in a fork of a process that has loaded torch and nothing of ours: alone, and still quick."""


def python(code: str, stdin: str = "") -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], input=stdin, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def failures_of(modules: list[str]) -> dict[str, str]:
    """Tracebacks of the modules that cannot be the first one imported, warnings being errors."""
    failures: dict[str, str] = json.loads(python(IMPORT_EACH, stdin=json.dumps(modules)))
    return failures


def heavy_after(modules: list[str]) -> set[str]:
    """Heavy libraries that importing these modules loads, directly or through others."""
    code = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\nprint(*sys.modules)"
    return HEAVY.intersection(python(code).split())


def test_each_module_imports_alone_without_a_warning() -> None:
    assert failures_of(["switchgear", *MODULES]) == {}


def test_a_module_that_does_not_import_alone_is_seen() -> None:
    (failure,) = failures_of(["switchgear.core.hooks", "switchgear.core.no_such_module"]).values()
    assert "No module named 'switchgear.core.no_such_module'" in failure


def test_the_contract_the_commands_and_the_plugins_load_no_heavy_library() -> None:
    assert heavy_after([name for name in MODULES if f"{name}.".startswith(LIGHT)]) == set()


def test_a_heavy_library_is_seen_behind_another_module() -> None:
    assert "torch" in heavy_after(["safetensors.torch"])


def test_importing_the_package_takes_no_torch() -> None:
    assert python("import sys, switchgear; print('torch' in sys.modules)").split() == ["False"]
