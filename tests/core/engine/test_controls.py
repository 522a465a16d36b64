"""Commands and counters of plugins: unknown ones are refused with what there is, failing ones name their plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from switchgear.core.engine.controls import read_stats, run_control
from switchgear.core.errors import ConfigError, PluginFault, RequestError
from switchgear.core.interfaces import Control
from switchgear.core.registry import Bound


class Counter:
    """Counts what it is told to."""

    def __init__(self) -> None:
        self.total = 0

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {"add": self.add, "refuse": self.refuse}

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def refuse(self) -> None:
        raise RequestError("not now")

    def stats(self) -> Mapping[str, float]:
        return {"total": np.int64(self.total)}  # type: ignore[dict-item]  # as plugins are written


class Broken(Counter):
    """Its counters are no numbers."""

    def stats(self) -> Mapping[str, float]:
        return {"total": "many"}  # type: ignore[dict-item]  # what this is about


@pytest.fixture
def controls() -> list[Bound[Control]]:
    return [Bound("counter", Counter()), Bound("other", Counter())]


def test_a_command_runs_with_its_arguments(controls: list[Bound[Control]]) -> None:
    assert run_control(controls, "counter", "add", {"amount": 2}) == 2
    assert run_control(controls, "counter", "add", {"amount": 3}) == 5
    assert read_stats(controls) == {"counter": {"total": 5.0}, "other": {"total": 0.0}}
    assert type(read_stats(controls)["counter"]["total"]) is float


@pytest.mark.parametrize(
    ("plugin", "command", "sentence"),
    [
        ("couter", "add", r"^unknown plugin with commands 'couter' \(did you mean 'counter'\?\): valid are counter, o"),
        ("counter", "ad", r"^unknown command of plugin 'counter' 'ad' \(did you mean 'add'\?\): valid are add, refuse"),
    ],
)
def test_what_does_not_exist_is_refused(
    controls: list[Bound[Control]], plugin: str, command: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_control(controls, plugin, command, {})


def test_wrong_arguments_are_refused_with_the_right_ones(controls: list[Bound[Control]]) -> None:
    with pytest.raises(RequestError, match=r"^command 'add' cannot be run like this .*: it takes amount$"):
        run_control(controls, "counter", "add", {})


def test_a_command_may_refuse(controls: list[Bound[Control]]) -> None:
    with pytest.raises(RequestError, match=r"^not now$"):
        run_control(controls, "counter", "refuse", {})


def test_counters_that_are_no_numbers_are_the_plugins_fault() -> None:
    with pytest.raises(PluginFault, match=r"^plugin 'broken' failed in stats: raised ValueError"):
        read_stats([Bound("broken", Broken())])
