"""What each plugin costs: time in a step, bytes, and seconds until the engine is ready."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from ..config import Config
from ..engine.build import Built, build, find
from ..engine.engine import Engine
from ..errors import RequestError
from ..recipes import REPLAYING
from ..registry import CORE, available, import_plugin
from ..sampling_params import SamplingParams
from .hook_clock import HookClock, Method, Spent, WatchedRegistry, seconds_per_call
from .prompt_ids import id_range

NUM_DECODES = 12
NUM_PREFILLS = 3
NUM_ROWS = 8
PROMPT = 256
"""The step that decodes has so many rows, and the one of a prompt so many tokens, where the engine takes them."""
NOT_IN_STEPS = ("(build)", "start", "allocate", "load", "needs", "close", "report")
"""Methods that belong to the start or the end."""


@dataclass(frozen=True, slots=True)
class MethodCost:
    """One method of what a plugin answered, per step."""

    plugin: str
    hook: str
    method: str
    decode_calls: float
    decode_seconds: float
    """Its own, without what it calls of others and without the clock."""
    prefill_calls: float
    prefill_seconds: float


@dataclass(frozen=True, slots=True)
class PluginCost:
    """One plugin, or the core where no plugin answers."""

    plugin: str
    decode_seconds: float
    """Per step, over all its methods."""
    prefill_seconds: float
    num_bytes: int
    """Weights that it stores, and what it asks for beside KV."""
    import_seconds: float
    """0 where something had imported it before."""
    start_seconds: float
    """In its hooks and in loading what it stores."""


@dataclass(frozen=True, slots=True)
class Costs:
    """All plugins, in config order, the core last."""

    plugins: tuple[PluginCost, ...]
    methods: tuple[MethodCost, ...]
    num_rows: int
    """Of the step that decodes."""
    num_prompt: int
    """Tokens of the prompt in the other one."""
    decode_seconds: float
    """A whole step, the clocks' own time taken out."""
    prefill_seconds: float
    seconds_per_call: float
    """What a clock takes."""
    decode_overhead: float
    """All clocks over the step without them."""
    prefill_overhead: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of one kind under the clock."""

    num_steps: int
    seconds: float
    """Median of a step."""
    spent: Mapping[Method, Spent]


def import_seconds(config: Config) -> dict[str, float]:
    """How long each plugin's module takes to be imported; 0 if it was before. Raises PluginError."""
    installed, seconds = available(), {}
    for entry in config.plugins:
        start = time.perf_counter()
        if entry.name in installed:
            import_plugin(installed[entry.name])
        seconds[entry.name] = time.perf_counter() - start
    return seconds


def measure_costs(config: Config, imports: Mapping[str, float]) -> Costs:
    """Build the engine once more with clocks around all that plugins answered, and step it.

    imports: from `import_seconds`. Raises what a start raises, and RequestError if a request fails.
    """
    # the clock around the executor keeps plugins that replay steps from doing so: the kernels have their own times
    config = msgspec.structs.replace(config, optional=config.optional | REPLAYING)
    clock, found = HookClock(), find(config)
    registry = WatchedRegistry(config, clock)
    built = build(replace(found, registry=registry), has_ingress=False)
    built.engine.start()
    try:
        starting = clock.read()
        stepping = Stepping(built, clock)
        num_prompt = min(PROMPT, built.limits.max_model_len // 2, built.limits.max_step_tokens)
        prefill = stepping.prefill(num_prompt)
        num_rows, decode = stepping.decode()
        num_bytes = bytes_by_plugin(registry)
    finally:
        built.engine.close()
    per_call = seconds_per_call()
    methods = tuple(method_costs(decode, prefill, per_call))
    names = [*(plugin.name for plugin in registry.plugins), CORE]
    overheads = [overhead(stage, per_call) for stage in (decode, prefill)]
    return Costs(
        plugins=tuple(plugin_cost(name, methods, num_bytes, imports, starting) for name in names),
        methods=methods,
        num_rows=num_rows,
        num_prompt=num_prompt,
        decode_seconds=decode.seconds - overheads[0],
        prefill_seconds=prefill.seconds - overheads[1],
        seconds_per_call=per_call,
        decode_overhead=overheads[0] / (decode.seconds - overheads[0]),
        prefill_overhead=overheads[1] / (prefill.seconds - overheads[1]),
    )


class Stepping:
    """Steps an engine with random prompts while a clock runs."""

    def __init__(self, built: Built, clock: HookClock) -> None:
        self.engine: Engine = built.engine
        self.limits = built.limits
        self.clock = clock
        self.ids = id_range(built.spec.vocab_size)
        self.random = np.random.default_rng(0)
        self.num_requests = 0

    def prefill(self, num_prompt: int) -> Stage:
        """One prompt at a time, up to its first token; the first of them is warm-up."""
        seconds = []
        for index in range(NUM_PREFILLS + 1):
            if index == 1:
                self.clock.read()
            request = self.add(num_prompt)
            seconds.append(0.0)
            while not self.has_token(request):
                seconds[-1] += self.step()
            self.engine.abort(request)
        return Stage(NUM_PREFILLS, float(np.median(seconds[1:])), self.clock.read())

    def decode(self) -> tuple[int, Stage]:
        """As many rows as run at once, up to NUM_ROWS; the first steps are warm-up."""
        room = min(NUM_ROWS, self.limits.max_num_seqs)
        num_prompt = max(1, min(32, self.limits.max_model_len // 2, self.limits.max_step_tokens // room))
        requests = [self.add(num_prompt) for _ in range(room)]
        while not self.is_settled():
            self.step()
        running = [request for request in requests if self.has_token(request)]
        self.step()
        self.clock.read()
        seconds = [self.step() for _ in range(NUM_DECODES)]
        stage = Stage(NUM_DECODES, float(np.median(seconds)), self.clock.read())
        for request in requests:
            self.engine.abort(request)
        return len(running), stage

    def add(self, num_prompt: int) -> str:
        self.num_requests += 1
        request = f"cost-{self.num_requests}"
        prompt = self.random.integers(self.ids.first, self.ids.end, num_prompt, dtype=np.int64)
        params = SamplingParams(max_tokens=self.limits.max_model_len - num_prompt, ignore_eos=True, temperature=0.0)
        self.engine.add(request, prompt, params)
        return request

    def step(self) -> float:
        start = time.perf_counter()
        emissions = self.engine.step()
        seconds = time.perf_counter() - start
        if error := next((emission.error for emission in emissions if emission.error), ""):
            raise RequestError(error)
        return seconds

    def has_token(self, request: str) -> bool:
        sequences = self.engine.requests.by_request.get(request, {}).values()
        return any(sequence.num_tokens > sequence.num_prompt for sequence in sequences)

    def is_settled(self) -> bool:
        """Whoever runs is past its prompt; who was not let in waits for good."""
        running = self.engine.requests.running.values()
        return bool(running) and all(sequence.num_computed >= sequence.num_prompt for sequence in running)


def overhead(stage: Stage, per_call: float) -> float:
    """Seconds of a step that are the clocks' own; never all of it."""
    num_calls = sum(spent.num_calls for spent in stage.spent.values()) / stage.num_steps
    return min(num_calls * per_call, 0.9 * stage.seconds)


def method_costs(decode: Stage, prefill: Stage, per_call: float) -> list[MethodCost]:
    costs = []
    for method in sorted({*decode.spent, *prefill.spent}):
        if method.method in NOT_IN_STEPS:
            continue
        each = [per_step(stage, method, per_call) for stage in (decode, prefill)]
        costs.append(MethodCost(*method, *each[0], *each[1]))
    return sorted(costs, key=lambda cost: -cost.decode_seconds)


def per_step(stage: Stage, method: Method, per_call: float) -> tuple[float, float]:
    """(calls, seconds) of one step. Half of a clock's own time is in what it measures, at most."""
    spent = stage.spent.get(method, Spent(0, 0.0))
    seconds = max(0.0, spent.seconds - spent.num_calls * per_call / 2)
    return spent.num_calls / stage.num_steps, seconds / stage.num_steps


def plugin_cost(
    name: str,
    methods: tuple[MethodCost, ...],
    num_bytes: Mapping[str, int],
    imports: Mapping[str, float],
    starting: Mapping[Method, Spent],
) -> PluginCost:
    its = [method for method in methods if method.plugin == name]
    return PluginCost(
        plugin=name,
        decode_seconds=sum(method.decode_seconds for method in its),
        prefill_seconds=sum(method.prefill_seconds for method in its),
        num_bytes=num_bytes.get(name, 0),
        import_seconds=imports.get(name, 0.0),
        start_seconds=sum(spent.seconds for method, spent in starting.items() if method.plugin == name),
    )


def bytes_by_plugin(registry: WatchedRegistry) -> dict[str, int]:
    """Weights as recipes report them, and what providers asked for before the KV pool was sized."""
    num_bytes: dict[str, int] = {}
    for plugin, hook, answer in registry.answers:
        num_bytes[plugin] = num_bytes.get(plugin, 0) + bytes_of(hook, answer)
    return num_bytes


def bytes_of(hook: str, answer: Any) -> int:
    needed = int(answer.needs().bytes) if hasattr(answer, "needs") else 0
    stored = int(answer.report().get("bytes", 0)) if hook == "quantize" else 0
    return needed + stored
