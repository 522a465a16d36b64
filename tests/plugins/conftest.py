"""What tests of plugins with native kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu.library import native


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where the native kernels were never built."""
    native.cache_clear()
    monkeypatch.setattr(build, "LIBRARY", "absent.so")
    yield
    native.cache_clear()
