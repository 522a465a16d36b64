"""Does a plugin keep the contract: what goes in and out, read-only views, no clock of its own, light and cheap?

Each public method of `Contract` is one check. It returns when the plugin keeps its word and raises KitFailure with a
text for its author when it does not.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import PluginEntry
from ..engine.parts import Parts
from ..errors import ConfigError, SwitchgearError
from ..registry import load_plugin, summary_of
from ..sampling_params import SamplingParams
from .chance import another_day, sources_of_chance
from .claims import CLAIMS
from .equivalence import Oracle
from .failure import KitFailure
from .scenario import play
from .shapes import Sizes, problem_of_call, writable_views
from .step_counts import Calls, step_marks
from .subject import Subject
from .virtual_run import VirtualRun
from .watching import Call, watch
from .workload import CASES, run_workload, tokens

HEAVY = ("torch", "transformers", "triton")
PER_LAYER = {("attention_impl", "write"), ("attention_impl", "forward")}
PER_LAYER_HOOKS = {"quantize", "wrap_linear", "fused_ops", "kv_codec"}
"""What the forward calls once a layer by its nature; never once a token."""
MAY_CHANGE: Mapping[tuple[str, str], str] = {
    ("attention_impl", "write"): "argument 3",
    ("attention_impl", "forward"): "argument 4",
    ("quantize", "linear"): "argument 3",
    ("fused_ops", "call"): "argument",
}
"""What a method is given in order to write into it, or owns by the time it is called."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a plugin was seen doing."""

    calls: list[Call]
    sizes: Sizes
    errors: list[str]
    """Of requests that failed."""


class Contract:
    """The checks of one plugin. What it is seen doing is seen once, for all of them."""

    def __init__(self, subject: Subject, oracle: Oracle) -> None:
        self.subject = subject
        self.oracle = oracle

    # -- without running anything -----------------------------------------------------------------------------------

    def loads_in_a_fresh_process_without_torch(self) -> None:
        """Whoever lists plugins does not wait for torch: heavy imports sit inside hooks."""
        module = self.subject.cls.__module__
        code = (
            "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); importlib.import_module(sys.argv[2]);"
            f"print(*[name for name in {HEAVY} if name in sys.modules])"
        )
        arguments = [sys.executable, "-c", code, json.dumps(sys.path), module]
        done = subprocess.run(arguments, capture_output=True, text=True)
        if done.returncode:
            raise KitFailure(f"module {module} cannot be imported alone: {done.stderr.strip().splitlines()[-1]}.")
        if done.stdout.split():
            raise KitFailure(
                f"importing module {module} loads {', '.join(done.stdout.split())}: move that import into the hook or "
                "method that needs it, or under `if TYPE_CHECKING` if only annotations do."
            )

    def says_what_it_is(self) -> None:
        """A docstring for who lists plugins, a known equivalence class, and only claims that the kit can check."""
        if not summary_of(self.subject.cls):
            raise KitFailure("the class has no docstring: `switchgear plugins` shows its first line.")
        unknown = sorted(set(self.subject.claims) - set(CLAIMS))
        if unknown:
            raise KitFailure(f"`claims` holds {unknown[0]!r}: the kit knows {', '.join(sorted(CLAIMS))}.")

    def refuses_wrong_options(self) -> None:
        """An option that does not exist and a value of the wrong type are errors before anything is built."""
        self._refuses({"no_such_option": 1}, "an option that does not exist")
        for name in self.subject.cls.Config.__struct_fields__:
            self._refuses({name: [{"of": object()}]}, f"a list of objects for `{name}`: give the field a type")

    def _refuses(self, options: Mapping[str, Any], what: str) -> None:
        try:
            load_plugin(PluginEntry(self.subject.name, options), {self.subject.name: self.subject.cls})
        except ConfigError:
            return
        except SwitchgearError as error:
            raise KitFailure(f"it is built with {what}, and fails there: {error}.") from error
        raise KitFailure(f"its Config accepts {what}.")

    def has_no_clock_and_no_dice(self) -> None:
        """Time is `view.now`, randomness is seeded by `view.seed`: read from the source of the plugin's module."""
        for path in sources_of(self.subject.cls):
            found = sources_of_chance(path.read_text(encoding="utf-8"))
            if found:
                raise KitFailure(
                    f"{path.name} uses {', '.join(sorted(set(found)))}: take time from `view.now` and randomness from "
                    "a generator seeded by `view.seed`, so that the plugin also runs in virtual time."
                )

    # -- running ----------------------------------------------------------------------------------------------------

    def starts_and_takes_its_place(self) -> None:
        """With what it requires and nothing else, an engine starts, and the plan names the plugin."""
        try:
            with self.oracle.engine(CASES[0], self.subject.alone, self.subject.classes) as llm:
                owners = {line.owner for line in llm.plan.hooks}
        except SwitchgearError as error:
            raise KitFailure(
                f"no engine starts with {', '.join(self.subject.alone)}: {error} (options can be given with "
                f"--switchgear-set plugins.{self.subject.name}.OPTION=VALUE)"
            ) from error
        if self.subject.name not in owners:
            raise KitFailure("the plan names it for no hook.")

    def answers_have_types_and_shapes(self) -> None:
        """Every hot method returns what its hook promises, for every kind of request."""
        for observed in self._everything:
            for call in observed.calls:
                problem = problem_of_call(call, observed.sizes)
                if problem:
                    raise KitFailure(f"{call.hook}, method `{call.method}`: {problem}.")
            if observed.errors:
                raise KitFailure(f"a request failed: {observed.errors[0]}.")
        self._leaves_whom_it_enters()

    def _leaves_whom_it_enters(self) -> None:
        counts = Counter(call.method for call in self.real.calls if call.hook == "on_ingress")
        if counts["enter"] != counts["leave"]:
            raise KitFailure(f"`enter` was called {counts['enter']} times and `leave` {counts['leave']} times.")

    def changes_nothing_that_it_is_given(self) -> None:
        """Views, plans and batches are the core's: to write into one raises, and nothing in them was changed."""
        for observed in self._everything:
            for error in observed.errors:
                if "read-only" in error:
                    raise KitFailure(f"it writes into what it was given: {error}. Make a copy, or use `replace`.")
            for call in observed.calls:
                allowed = MAY_CHANGE.get(call.place, "nothing")
                changed = [what for what in call.changed if not what.startswith(allowed)]
                if changed:
                    raise KitFailure(f"{call.hook}, method `{call.method}` changed {', '.join(changed)}.")
                unlocked = writable_views(call)
                if unlocked:
                    raise KitFailure(f"the engine gave `{call.method}` {unlocked[0]} unlocked; report this.")

    def plans_the_same_at_any_time(self) -> None:
        """The same history gives the same answers on another day and after other random numbers."""
        today = self.virtual.calls
        with another_day():
            tomorrow = self._watch_virtual().calls
        for one, other in zip(today, tomorrow, strict=False):
            if (one.place, repr(one.result)) != (other.place, repr(other.result)):
                raise KitFailure(
                    f"{one.hook}, method `{one.method}` returned {one.result}, and with another wall clock and other "
                    f"global random numbers {other.result}: take both from the view."
                )
        if len(today) != len(tomorrow):
            raise KitFailure("with another wall clock it is called another number of times: it depends on it.")

    def is_called_no_more_for_more_tokens_or_layers(self) -> None:
        """A step costs a fixed number of calls: the same for short and long prompts, and for two and five layers."""
        short = self._calls_per_step(num_layers=2, num_tokens=6)
        long = self._calls_per_step(num_layers=2, num_tokens=60)
        deep = self._calls_per_step(num_layers=5, num_tokens=6)
        for place in sorted({*short, *long, *deep}):
            called = f"{place[0]}, method `{place[1]}` is called {short[place]} times in a step"
            if long[place] > short[place]:
                raise KitFailure(f"{called} with a prompt of 6 tokens and {long[place]} times with one of 60.")
            is_per_layer = place in PER_LAYER or place[0] in PER_LAYER_HOOKS
            if deep[place] != short[place] and not is_per_layer:
                raise KitFailure(f"{called} of a model of 2 layers and {deep[place]} times with 5.")

    # -- looking on -------------------------------------------------------------------------------------------------

    @property
    def _everything(self) -> list[Observed]:
        return [self.real, self.virtual] if is_virtual(self.subject) else [self.real]

    @cached_property
    def real(self) -> Observed:
        """Through the whole engine, on the tiny model that has little KV."""
        calls: list[Call] = []
        with self.oracle.engine(CASES[1], self.subject.alone, self._watched(calls.append)) as llm:
            answers = run_workload(llm, CASES[1].asks)
            llm.stats()
            sizes = sizes_of(llm._engine.parts)
        errors = [answer.result.error for answer in answers if answer.result is not None and answer.result.error]
        return Observed(calls, sizes, errors)

    @cached_property
    def virtual(self) -> Observed:
        return self._watch_virtual()

    def _watch_virtual(self) -> Observed:
        """Scheduling and KV alone, on a model with two KV groups, in little KV."""
        calls: list[Call] = []
        run = VirtualRun(self.subject.alone, self._watched(calls.append), num_tokens=128, num_groups=2)
        play(run)
        errors = [final.error for asked in run.requests.values() for final in asked.finals.values() if final.error]
        return Observed(calls, sizes_of(run.engine.parts), errors)

    def _watched(self, on_call: Callable[[Call], None]) -> tuple[type, ...]:
        return (watch(self.subject.cls, on_call), *self.subject.classes)

    def _calls_per_step(self, num_layers: int, num_tokens: int) -> Calls:
        """The most calls of each method in one step, for one request at a time."""
        per_step: list[Calls] = [Counter()]
        case = replace(CASES[0], model={"num_hidden_layers": num_layers})
        classes = (*self._watched(lambda call: per_step[-1].update([call.place])), step_marks(per_step))
        with self.oracle.engine(case, {**self.subject.alone, "kit_steps": {}}, classes) as llm:
            per_step.clear()
            per_step.append(Counter())
            for _ in range(2):
                llm.generate([list(tokens(num_tokens))], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
        most: Calls = Counter()
        for counts in per_step:
            most |= counts
        return most


def sizes_of(parts: Parts) -> Sizes:
    return Sizes(parts.vocab_size, parts.kv.block_size, tuple(group.num_blocks for group in parts.kv_spec))


def is_virtual(subject: Subject) -> bool:
    """Whether the plugin has a part in what runs without a model."""
    is_base = "execute" in subject.hooks and "inner" not in inspect.signature(subject.cls.execute).parameters
    hooks = {"schedule_step", "allocate_kv", "propose_tokens", "logits", "execute", "control", "observe"}
    return bool(hooks.intersection(subject.hooks)) and not is_base


def sources_of(cls: type) -> list[Path]:
    """The file of a plugin's class, or the whole folder where it is a package."""
    path = Path(inspect.getfile(cls))
    return sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
