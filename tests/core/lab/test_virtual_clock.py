"""Time that passes only forward, and only when told."""

import pytest
from switchgear.core.lab.virtual_clock import VirtualClock


def test_time_passes_when_told() -> None:
    clock = VirtualClock()
    assert clock() == clock() == 0.0
    clock.advance(1.5)
    clock.jump(4.0)
    assert clock() == 4.0


def test_time_does_not_run_backwards() -> None:
    clock = VirtualClock()
    clock.jump(2.0)
    with pytest.raises(AssertionError):
        clock.jump(1.0)
    with pytest.raises(AssertionError):
        clock.advance(-1.0)
