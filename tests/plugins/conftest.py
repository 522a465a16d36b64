"""What tests of plugins with native kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu.library import native, usable


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where the native kernels were never built."""
    known = (usable, native)
    for function in known:
        function.cache_clear()
    monkeypatch.setattr(build, "LIBRARY", "absent.so")
    yield
    for function in known:
        function.cache_clear()
