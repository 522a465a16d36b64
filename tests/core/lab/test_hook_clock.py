"""The clock around what hooks answered: own time, and a provider that is still itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from switchgear.core.lab.hook_clock import HookClock, Method, seconds_per_call


class Ticking:
    """A clock that says how often it was asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass(frozen=True, slots=True)
class Provider:
    """Frozen and with slots, as many providers are."""

    size: int

    def twice(self, number: int) -> int:
        return 2 * number * self.size

    def fail(self) -> None:
        raise RuntimeError("no luck")


class Wrapper:
    max_in_flight = 1

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.count = 0

    def twice(self, number: int) -> int:
        self.count += 1
        return self.inner.twice(number)


def test_a_watched_provider_is_still_itself() -> None:
    clock = HookClock()
    provider = clock.watch(Provider(3), "mine", "execute")
    assert provider.size == 3
    assert [provider.twice(number) for number in (1, 2)] == [6, 12]
    assert not hasattr(provider, "thrice")
    assert clock.read()[Method("mine", "execute", "twice")].num_calls == 2
    assert clock.read() == {}


def test_what_is_set_on_it_is_set_on_the_provider() -> None:
    inner = Wrapper(Provider(1))
    watched = HookClock().watch(inner, "mine", "execute")
    watched.max_in_flight = 2
    watched.twice(1)
    assert (inner.max_in_flight, watched.max_in_flight, inner.count, watched.count) == (2, 2, 1, 1)


def test_an_operation_is_watched_and_keeps_its_attributes() -> None:
    def norm(x: int) -> int:
        return x + 1

    norm.is_capturable = True  # type: ignore[attr-defined]
    clock = HookClock()
    watched = clock.watch(norm, "mine", "fused_ops")
    assert watched(1) == 2 and watched.is_capturable
    assert list(clock.read()) == [Method("mine", "fused_ops", "call")]


def test_time_within_another_call_counts_for_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", Ticking())
    clock = HookClock()
    wrapper = clock.watch(Wrapper(clock.watch(Provider(1), "base", "execute")), "outer", "execute")
    wrapper.twice(1)
    spent = clock.read()
    # four looks at the clock: from the first to the last are 3, of which 1 belongs to the one within
    assert spent[Method("outer", "execute", "twice")].seconds == 2.0
    assert spent[Method("base", "execute", "twice")].seconds == 1.0


def test_a_call_that_raises_is_over_for_the_clock() -> None:
    clock = HookClock()
    provider = clock.watch(Provider(1), "mine", "execute")
    with pytest.raises(RuntimeError, match="no luck"):
        provider.fail()
    provider.twice(1)
    spent = clock.read()
    assert spent[Method("mine", "execute", "fail")].num_calls == 1
    assert spent[Method("mine", "execute", "twice")].num_calls == 1
    assert clock._inner == []


def test_the_clock_knows_its_own_price() -> None:
    assert 0 <= seconds_per_call() < 1e-3
