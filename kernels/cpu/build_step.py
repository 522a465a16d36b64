"""The build step of setuptools: compiles the native kernels, and lets the install go on where that fails.

Imported by nothing else. pyproject.toml names the extension, and it as optional.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# setuptools loads this file by itself, before there is a package to import from
BUILD = runpy.run_path(str(Path(__file__).with_name("build.py")))


class BuildNative(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Hands the compiling over to build.py, which alone knows what each file is compiled for."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            BUILD["build"](target)
        except BUILD["BuildError"] as error:
            raise CompileError(f"{error}; switchgear runs without its native kernels") from error
