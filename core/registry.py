"""Finds plugins by the names in the config, checks and builds them, and binds their hooks.

The only file that touches pluggy. Hooks are called here, while a process is built; what they return is handed to the
core together with the name of the plugin it came from.
"""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from .config import PluginConfig, PluginEntry, build_struct, unknown
from .errors import ConfigError, PluginError, PluginFault, SwitchgearError
from .hooks import HOOK_API, HookSpecs
from .records import TOKEN_EQUAL, Equivalence, Refusal

if TYPE_CHECKING:
    from .interfaces import Linear
    from .records import Limits, LinearSpec

GROUP = "switchgear.plugins"
PROJECT = "switchgear"
CORE = "core"
"""What owns a hook that no plugin took."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound(Generic[T]):
    """An answer to a hook, and the plugin it came from."""

    plugin: str
    value: T


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that is switched on, built in this process."""

    name: str
    instance: object
    config: PluginConfig
    equivalence: Equivalence
    distribution: str
    version: str
    summary: str
    hooks: tuple[str, ...]


def spec_arguments() -> dict[str, tuple[str, ...]]:
    """Each hook's name and its arguments, in the order of the file."""
    return {
        name: tuple(inspect.signature(function).parameters)[1:]
        for name, function in vars(HookSpecs).items()
        if hasattr(function, f"{PROJECT}_spec")
    }


HOOKS = spec_arguments()


# -- finding and checking -------------------------------------------------------------------------------------------


def available() -> dict[str, EntryPoint]:
    """Every installed plugin by name; nothing is imported."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        known = found.setdefault(entry.name, entry)
        if known.value != entry.value:
            raise PluginError(
                f"plugin name {entry.name!r} is taken twice, by {distribution_of(known)[0]} and by "
                f"{distribution_of(entry)[0]}: uninstall one of them"
            )
    return found


def distribution_of(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown distribution", "0")


def load_plugin(entry: PluginEntry, classes: Mapping[str, Any]) -> Loaded:
    """Import, check and build one plugin; every failure names the distribution and the cause."""
    if entry.name in classes:
        cls, (distribution, version) = classes[entry.name], (classes[entry.name].__module__, "unpublished")
    else:
        found = available()
        if entry.name not in found:
            raise ConfigError(unknown("plugin", entry.name, {*found, *classes}))
        distribution, version = distribution_of(found[entry.name])
        cls = import_plugin(found[entry.name])
    hooks = check_class(entry.name, cls)
    config = build_struct(cls.Config, entry.options, f"[plugins.{entry.name}]")
    try:
        instance = cls(config)
    except Exception as error:
        raise PluginError(f"plugin {entry.name!r} of {distribution} cannot be built: {error}") from error
    equivalence = getattr(instance, "equivalence", TOKEN_EQUAL)
    return Loaded(entry.name, instance, config, equivalence, distribution, version, summary_of(cls), hooks)


def import_plugin(entry: EntryPoint) -> Any:
    """What an entry point names, unchecked; the failure names the distribution and the cause."""
    try:
        return entry.load()
    except Exception as error:
        distribution, version = distribution_of(entry)
        raise PluginError(
            f"plugin {entry.name!r} of {distribution} {version} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def summary_of(cls: type) -> str:
    """The first line of a plugin's docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def check_class(name: str, cls: Any) -> tuple[str, ...]:
    """Refuse what pluggy would accept and then silently ignore. Returns the hooks the class implements."""

    def refuse(problem: str) -> PluginError:
        return PluginError(f"plugin {name!r} ({cls!r}): {problem}")

    if not isinstance(cls, type):
        raise refuse("its entry point must name a class")
    if getattr(cls, "name", None) != name:
        raise refuse(f"its `name` is {getattr(cls, 'name', None)!r}, it must equal the entry point's name")
    config = getattr(cls, "Config", None)
    if not (isinstance(config, type) and issubclass(config, PluginConfig)):
        raise refuse("it needs a nested class `Config(PluginConfig)`, empty if there is nothing to set")
    if not isinstance(getattr(cls, "equivalence", None), Equivalence):
        raise refuse("it must declare `equivalence`: TOKEN_EQUAL, DISTRIBUTION or Equivalence('lossy', ...)")
    api = getattr(cls, "hook_api", HOOK_API)
    if not (isinstance(api, tuple) and len(api) == 2 and all(isinstance(number, int) for number in api)):
        raise refuse(f"its `hook_api` is {api!r}, it must be two integers such as {HOOK_API}")
    major, minor = api
    if major != HOOK_API[0] or minor > HOOK_API[1]:
        raise refuse(f"it was written for hook API {major}.{minor}, this engine has {HOOK_API[0]}.{HOOK_API[1]}")
    hooks = []
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        is_marked = hasattr(function, f"{PROJECT}_impl")
        if is_marked and attribute not in HOOKS:
            raise refuse(unknown("hook", attribute, HOOKS))
        if attribute in HOOKS and not is_marked and is_meant_as_hook(attribute, function):
            raise refuse(f"its method {attribute!r} is named after a hook and lacks @hookimpl")
        if is_marked:
            check_arguments(attribute, function, refuse)
            hooks.append(attribute)
    if not hooks:
        raise refuse("it implements no hook")
    if "allocate_kv" in hooks and not is_wrapper(cls, "allocate_kv") and not hasattr(cls, "kv_block_size"):
        raise refuse("its `allocate_kv` does not name `inner`, so it needs a method `kv_block_size(limits) -> int`")
    return tuple(hook for hook in HOOKS if hook in hooks)


def is_meant_as_hook(name: str, function: object) -> bool:
    """Whether an unmarked attribute could be the hook of its name; a router's `observe(event)` is not the hook."""
    return callable(function) and set(list(inspect.signature(function).parameters)[1:]) <= set(HOOKS[name])


def check_arguments(hook: str, function: Callable[..., Any], refuse: Callable[[str], PluginError]) -> None:
    options = [name for name, value in getattr(function, f"{PROJECT}_impl").items() if value]
    if options:
        raise refuse(
            f"its hook {hook!r} is marked with {', '.join(options)}: order comes from the config, so mark it bare"
        )
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            raise refuse(
                f"argument {parameter.name!r} of its hook {hook!r} is keyword-only, variadic or has a default, and "
                "would never be passed: make it a plain argument"
            )
        if parameter.name not in HOOKS[hook]:
            raise refuse(f"its hook {hook!r}: {unknown('argument', parameter.name, HOOKS[hook])}")


def is_wrapper(plugin: object, hook: str) -> bool:
    """An implementation that names `inner` wraps what is there; one that does not is the base."""
    return "inner" in inspect.signature(getattr(plugin, hook)).parameters


def check_relations(plugins: Sequence[Loaded]) -> None:
    """`requires` and `conflicts`, by name."""
    on = {plugin.name for plugin in plugins}
    for plugin in plugins:
        for name in getattr(plugin.instance, "requires", ()):
            if name not in on:
                raise PluginError(f"plugin {plugin.name!r} requires {name!r}: switch it on, or {plugin.name!r} off")
        for name in getattr(plugin.instance, "conflicts", ()):
            if name in on:
                raise PluginError(f"plugins {plugin.name!r} and {name!r} cannot both be on: switch one of them off")


# -- binding --------------------------------------------------------------------------------------------------------


class Registry:
    """The plugins that are on, in config order, with the defaults behind them. One for each process; shares nothing."""

    def __init__(
        self, entries: Iterable[PluginEntry], defaults: Iterable[object], classes: Iterable[type] = ()
    ) -> None:
        by_name: dict[str, Any] = {str(getattr(cls, "name", cls.__name__)): cls for cls in classes}
        self.plugins = tuple(load_plugin(entry, by_name) for entry in entries)
        check_relations(self.plugins)
        self.bindings: Counter[tuple[str, str]] = Counter()
        """How many times each (hook, plugin) was given a place in the engine."""
        self.refusals: dict[tuple[str, str], tuple[str, ...]] = {}
        self.reasons: dict[tuple[str, str], list[str]] = {}
        """What answers say of themselves, each once."""
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(HookSpecs)
        for default in defaults:
            self.manager.register(default)
        # pluggy calls the last registered first
        for plugin in reversed(self.plugins):
            self.manager.register(plugin.instance, plugin.name)
        self._owners = {id(plugin.instance): plugin.name for plugin in self.plugins}
        self._answers: list[object] = []
        """What plugins answered, kept so that its `id` stays its own."""

    def owner(self, instance: object) -> str:
        return self._owners.get(id(instance), CORE)

    def _implementations(self, hook: str) -> list[object]:
        """Plugin objects that implement a hook, in config order; behind them who takes what is left, then defaults."""
        plugins = [impl.plugin for impl in reversed(getattr(self.manager.hook, hook).get_hookimpls())]
        return sorted(plugins, key=lambda each: (self.owner(each) == CORE, hook in getattr(each, "last_in", ())))

    def _ask(self, hook: str, instance: object, arguments: Mapping[str, Any]) -> Any:
        """Call one plugin's implementation through pluggy, which passes what it names."""
        others = [plugin for plugin in self.manager.get_plugins() if plugin is not instance]
        try:
            answers = self.manager.subset_hook_caller(hook, others)(**arguments)
        except SwitchgearError:
            raise
        except Exception as error:
            raise PluginError(
                f"plugin {self.owner(instance)!r} failed in its hook {hook!r}: {type(error).__name__}: {error}"
            ) from error
        return answers[0] if answers else None

    def _bind(self, hook: str, instance: object, value: T) -> Bound[T]:
        name = self.owner(instance)
        self.bindings[hook, name] += 1
        reason = getattr(value, "reason", "")
        if reason and reason not in self.reasons.setdefault((hook, name), []):
            self.reasons[hook, name].append(reason)
        if name != CORE:
            self._answers.append(value)
            self._owners[id(getattr(value, "__code__", value))] = name
        return Bound(name, value)

    def every(self, hook: str, **arguments: Any) -> list[Bound[Any]]:
        """All answers, in config order."""
        answers = [(plugin, self._ask(hook, plugin, arguments)) for plugin in self._implementations(hook)]
        return [self._bind(hook, plugin, answer) for plugin, answer in answers if answer is not None]

    def leave(self, hook: str) -> list[Bound[Any]]:
        """No answers, since another process of the same plan asks for them; who implements the hook has its place."""
        self.bindings.update((hook, self.owner(plugin)) for plugin in self._implementations(hook))
        return []

    def first(self, hook: str, **arguments: Any) -> Bound[Any] | None:
        """The first answer in config order that is no refusal; refusals are kept for the error and the plan."""
        for plugin in self._implementations(hook):
            answer = self._ask(hook, plugin, arguments)
            if isinstance(answer, Refusal):
                self.refusals[hook, self.owner(plugin)] = answer.reasons
            elif answer is not None:
                return self._bind(hook, plugin, answer)
        return None

    def one(self, hook: str, **arguments: Any) -> Bound[Any] | None:
        """The single answer of a hook with one owner; a default gives way, two plugins are an error."""
        return self._single(hook, [p for p in self._implementations(hook)], arguments)

    def wrapped(self, hook: str, **arguments: Any) -> tuple[Bound[Any], list[Bound[Any]]]:
        """A base and the wrappers around it, innermost first: (base, wrappers). The last one is what to call.

        A wrapper that refuses is left out; its reasons are kept for the error and the plan.
        """
        implementations = self._implementations(hook)
        wrappers = [plugin for plugin in implementations if is_wrapper(plugin, hook)]
        base = self._single(hook, [p for p in implementations if p not in wrappers], {**arguments, "inner": None})
        assert base is not None, f"no default answers {hook}"
        chain: list[Bound[Any]] = []
        for plugin in wrappers:
            inner = (chain[-1] if chain else base).value
            answer = self._ask(hook, plugin, {**arguments, "inner": inner})
            if isinstance(answer, Refusal):
                self.refusals[hook, self.owner(plugin)] = answer.reasons
            elif answer is not None:
                chain.append(self._bind(hook, plugin, answer))
        return base, chain

    def _single(self, hook: str, candidates: list[object], arguments: Mapping[str, Any]) -> Bound[Any] | None:
        answers = [(plugin, self._ask(hook, plugin, arguments)) for plugin in candidates]
        given = [(plugin, answer) for plugin, answer in answers if answer is not None]
        self._check_one_owner(hook, [self.owner(plugin) for plugin, _ in given])
        return self._bind(hook, *given[0]) if given else None

    def _check_one_owner(self, hook: str, owners: Sequence[str]) -> None:
        rivals = [name for name in owners if name != CORE]
        if len(rivals) > 1:
            raise PluginError(
                f"plugins {rivals[0]!r} and {rivals[1]!r} both provide {hook!r}, which has one owner: "
                "switch one of them off"
            )

    def schedule(self, **arguments: Any) -> tuple[Bound[Any], list[Bound[Any]]]:
        """The policy and the modifiers, in config order."""
        policies, modifiers = [], []
        for plugin in self._implementations("schedule_step"):
            answer = self._ask("schedule_step", plugin, arguments)
            if answer is None:
                continue
            if hasattr(answer, "plan"):
                policies.append((plugin, answer))
            elif hasattr(answer, "revise"):
                modifiers.append((plugin, answer))
            else:
                raise PluginError(
                    f"plugin {self.owner(plugin)!r} answered 'schedule_step' with {answer!r}, which has neither "
                    "`plan` (a policy) nor `revise` (a modifier)"
                )
        self._check_one_owner("schedule_step", [self.owner(plugin) for plugin, _ in policies])
        return self._bind("schedule_step", *policies[0]), [self._bind("schedule_step", *each) for each in modifiers]

    def block_size(self, limits: Limits) -> int:
        """Tokens a block, as the owner of the base allocator wants them."""
        base = self._base_allocator()
        with self.blaming():
            size = base.kv_block_size(limits)
        if not (isinstance(size, int) and size >= 1):
            raise PluginError(f"plugin {self.owner(base)!r} wants {size!r} tokens a KV block: it must be 1 or more")
        return size

    def window_blocks(self, window: int, limits: Limits) -> int | None:
        """The most blocks that the base allocator ever needs in a group with a window; None: as many as in any."""
        base = self._base_allocator()
        if not hasattr(base, "kv_window_blocks"):
            return None
        with self.blaming():
            count: int = base.kv_window_blocks(window, limits)
        return count

    def _base_allocator(self) -> Any:
        bases = [plugin for plugin in self._implementations("allocate_kv") if not is_wrapper(plugin, "allocate_kv")]
        self._check_one_owner("allocate_kv", [self.owner(plugin) for plugin in bases])
        return bases[0]

    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Linear:
        """Everybody's wrapper around one linear, in config order."""
        for plugin in self._implementations("wrap_linear"):
            answer = self._ask("wrap_linear", plugin, {"spec": spec, "linear": linear})
            if answer is not None:
                linear = self._bind("wrap_linear", plugin, answer).value
        return linear

    # -- after everything was asked ---------------------------------------------------------------------------------

    def without_effect(self) -> dict[str, str]:
        """Plugins that are on and do nothing here, or less than they offer, each with the reason."""
        idle: dict[str, str] = {}
        for plugin in self.plugins:
            refused = [hook for hook in plugin.hooks if (hook, plugin.name) in self.refusals]
            unbound = [hook for hook in plugin.hooks if not self.bindings[hook, plugin.name]]
            if len(unbound) == len(plugin.hooks) or any(hook in unbound for hook in refused):
                reasons = [reason for hook in refused for reason in self.refusals[hook, plugin.name]]
                idle[plugin.name] = "; ".join(reasons) or f"nothing took what it offers for {', '.join(unbound)}"
        return idle

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Outside of any step: what a plugin raises inside becomes a PluginFault in its name."""
        try:
            yield
        except SwitchgearError:
            raise
        except Exception as error:
            fault = self.blame(error)
            if fault is None:
                raise
            raise fault from error

    def blame(self, error: BaseException) -> Exception | None:
        """The error as the fault of the plugin last entered before it arose; None if it is the core's."""
        if isinstance(error, PluginFault):
            return error
        modules = {type(plugin.instance).__module__: plugin.name for plugin in self.plugins}
        fault, before = None, None
        for frame, _ in traceback.walk_tb(error.__traceback__):
            # in a hook's answer, in a function that is one, or at least in the plugin's module
            owner = self._owners.get(id(frame.f_locals.get("self"))) or self._owners.get(id(frame.f_code))
            owner = owner or modules.get(frame.f_globals.get("__name__", ""))
            if owner is not None and owner != before:
                fault = PluginFault(owner, frame.f_code.co_name, error)
            before = owner
        return fault

    def equivalence(self) -> Equivalence:
        """The class of the whole set: the weakest of its members."""
        return max(
            (plugin.equivalence for plugin in self.plugins), key=lambda e: (e.rank, e.bound), default=TOKEN_EQUAL
        )
