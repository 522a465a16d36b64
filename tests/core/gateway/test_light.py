"""The gateway's process has no torch: it starts in a second, and the engine has the memory to itself."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("server", "service", "app", "llm", "generation", "prompts")


def test_everything_that_the_gateway_imports_is_without_torch() -> None:
    code = "import importlib, sys\n"
    code += f"for name in {MODULES}: importlib.import_module(f'switchgear.core.gateway.{{name}}')\n"
    code += "print(sorted({'torch', 'transformers', 'triton'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
