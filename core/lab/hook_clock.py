"""How long each plugin takes where the engine calls it: what the hooks answered, with a clock around every method.

Times are a caller's own: what it calls of others, such as attention within the executor or an allocator within its
wrapper, counts for those alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import ismethod
from typing import Any, NamedTuple, TypeVar

from ..config import Config
from ..defaults import DEFAULTS
from ..registry import Bound, Registry

T = TypeVar("T")
TIMED_HOOKS = (
    "schedule_step",
    "allocate_kv",
    "propose_tokens",
    "execute",
    "logits",
    "quantize",
    "wrap_linear",
    "kv_codec",
    "attention_impl",
    "fused_ops",
    "observe",
)
"""Whose answers are called within a step."""
BUILD = "(build)"
"""Stands for the hook itself, which is called while an engine is built."""
NUM_CALIBRATION_CALLS = 20_000


class Method(NamedTuple):
    """What is timed."""

    plugin: str
    """`core` for what answers where no plugin does."""
    hook: str
    method: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What was measured of one method since the clock was last read."""

    num_calls: int
    seconds: float


class HookClock:
    """Adds up calls and seconds by method. For one thread."""

    def __init__(self) -> None:
        self._calls: Counter[Method] = Counter()
        self._seconds: Counter[Method] = Counter()
        self._inner: list[float] = []
        """For each call that is open, the time of the calls in it."""

    def timed(self, method: Method, call: Callable[..., T]) -> Callable[..., T]:
        """The call with the clock around it."""

        def measured(*arguments: Any, **options: Any) -> T:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                whole = time.perf_counter() - start
                self._seconds[method] += whole - self._inner.pop()  # type: ignore[assignment]  # Counter of floats
                self._calls[method] += 1
                if self._inner:
                    self._inner[-1] += whole

        return measured

    def read(self) -> dict[Method, Spent]:
        """All that was measured since the last reading."""
        spent = {method: Spent(self._calls[method], self._seconds[method]) for method in self._calls}
        self._calls.clear()
        self._seconds.clear()
        return spent

    def watch(self, value: Any, plugin: str, hook: str) -> Any:
        """A provider like the one given, whose methods are timed."""
        around = WatchedCallable if callable(value) else WatchedProvider
        return around(value, lambda name, call: self.timed(Method(plugin, hook, name), call))


Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class WatchedProvider:
    """Stands before a provider and gives out its methods with a clock around them; the rest is the provider's own."""

    def __init__(self, value: Any, around: Around) -> None:
        self.__dict__.update(_value=value, _around=around)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.__dict__["_value"], name)
        if not ismethod(attribute) or name.startswith("_"):
            return attribute
        # bound once, so that later calls find it here
        timed = self.__dict__[name] = self.__dict__["_around"](name, attribute)
        return timed

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_value"], name, value)


class WatchedCallable(WatchedProvider):
    """The same for a provider that is called itself, as an operation is."""

    def __init__(self, value: Any, around: Around) -> None:
        super().__init__(value, around)
        self.__dict__["_call"] = around("call", value)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__dict__["_call"](*arguments, **options)


class WatchedRegistry(Registry):
    """A registry whose hooks and answers are timed."""

    def __init__(self, config: Config, clock: HookClock) -> None:
        self.clock = clock
        self.answers: list[tuple[str, str, Any]] = []
        """(plugin, hook, answer) of all that was bound."""
        super().__init__(config.plugins, [default() for default in DEFAULTS])

    def _ask(self, hook: str, instance: object, arguments: Mapping[str, Any]) -> Any:
        ask = self.clock.timed(Method(self.owner(instance), hook, BUILD), super()._ask)
        return ask(hook, instance, arguments)

    def _bind(self, hook: str, instance: object, value: T) -> Bound[T]:
        bound = super()._bind(hook, instance, value)
        self.answers.append((bound.plugin, hook, value))
        if hook not in TIMED_HOOKS:
            return bound
        return Bound(bound.plugin, self.clock.watch(value, bound.plugin, hook))


def seconds_per_call() -> float:
    """What the clock adds to a call, on this machine and now."""
    clock = HookClock()
    provider = clock.watch(Nothing(), "none", "none")
    plain, timed = Nothing().do, provider.do
    return max(0.0, (seconds_of(timed) - seconds_of(plain)) / NUM_CALIBRATION_CALLS)


class Nothing:
    def do(self) -> None: ...


def seconds_of(call: Callable[[], object]) -> float:
    """The shortest of three times so many calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(NUM_CALIBRATION_CALLS):
            call()
        times.append(time.perf_counter() - start)
    return min(times)
