"""The wire format stands alone: it can be used, and tested, where there is no engine."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "tokenizers", "zmq", "starlette", "uvicorn")
CODE = f"""
import importlib, pkgutil, sys
import switchgear.core.gateway.openai as package
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_no_module_needs_an_engine_or_a_server() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
