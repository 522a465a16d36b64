"""Profiles that take a second: few steps, and a machine that is hardly measured."""

from __future__ import annotations

import pytest
from switchgear.core.lab import ceilings, episodes, hook_clock, plugin_costs


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured stays what it is; only how much of it there is changes."""
    for module, name, value in (
        (ceilings, "SECONDS_EACH", 0.001),
        (ceilings, "MATRIX_SIZES", (32,)),
        (ceilings, "MIN_FAR_BYTES", 2**20),
        (ceilings, "FAR_CACHES", 0),
        (episodes, "BATCH_SIZES", (1, 2, 4)),
        (episodes, "PROMPTS", (16, 64)),
        (episodes, "CHUNKS", (8, 32)),
        (episodes, "NUM_DECODES", 2),
        (hook_clock, "NUM_CALIBRATION_CALLS", 200),
        (plugin_costs, "NUM_DECODES", 3),
        (plugin_costs, "NUM_PREFILLS", 1),
    ):
        monkeypatch.setattr(module, name, value)
