"""Plugins are found by name, checked before they run, and bound in the order of the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.config import Config, PluginConfig, PluginEntry
from switchgear.core.defaults import StaticBatching
from switchgear.core.engine.assemble import make_registry
from switchgear.core.errors import ConfigError, PluginError, PluginFault
from switchgear.core.hooks import HOOK_API, hookimpl
from switchgear.core.records import DISTRIBUTION, TOKEN_EQUAL, Equivalence, Limits, Refusal
from switchgear.core.registry import CORE, HOOKS, Registry, available, check_class

LIMITS = Limits(max_num_seqs=1, max_step_tokens=1, max_model_len=1)


class Base:
    """What every plugin needs."""

    name = "plugin"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        pass


def plugin(its_name: str, **members: Any) -> type:
    """A plugin class with these members, in a module of its own."""
    about = {"name": its_name, "__doc__": f"The {its_name} plugin.", "__module__": "plugins_of_this_test"}
    return type("Made", (Base,), {**about, **members})


def registry_of(*classes: type) -> Registry:
    """All of them on, in this order, before the defaults."""
    entries = [PluginEntry(str(cls.name), {}) for cls in classes]  # type: ignore[attr-defined]
    return Registry(entries, [StaticBatching()], classes)


def refusal(cls: Any) -> str:
    with pytest.raises(PluginError) as refused:
        check_class("plugin", cls)
    text = str(refused.value)
    assert text.startswith("plugin 'plugin' (") and "\n" not in text
    return text


# -- what is refused ------------------------------------------------------------------------------------------------


@hookimpl
def observe(self: object) -> None: ...


def test_a_sound_class_is_accepted_with_its_hooks_in_the_order_of_a_request() -> None:
    cls = plugin("plugin", observe=observe, on_ingress=hookimpl(lambda self, model: None))
    assert check_class("plugin", cls) == ("on_ingress", "observe")


def test_a_misspelt_hook() -> None:
    text = refusal(plugin("plugin", alocate_kv=hookimpl(lambda self: None)))
    assert "unknown hook 'alocate_kv' (did you mean 'allocate_kv'?): valid are allocate_kv, " in text
    assert all(hook in text for hook in HOOKS)


def test_a_hook_without_its_mark() -> None:
    text = refusal(plugin("plugin", observe=observe, route=lambda self, model: None))
    assert "its method 'route' is named after a hook and lacks @hookimpl" in text


def test_a_hook_method_of_the_answer_is_no_hook() -> None:
    """A router that is its own plugin has a method `observe(event)`."""
    cls = plugin("plugin", route=hookimpl(lambda self, model: self), observe=lambda self, event: None)
    assert check_class("plugin", cls) == ("route",)


def keyword_only(self: object, *, limits: object) -> None: ...
def defaulted(self: object, limits: object = None) -> None: ...
def variadic(self: object, *arguments: object) -> None: ...
def variadic_by_name(self: object, **arguments: object) -> None: ...


@pytest.mark.parametrize("function", [keyword_only, defaulted, variadic, variadic_by_name])
def test_arguments_that_pluggy_would_not_pass(function: Callable[..., None]) -> None:
    text = refusal(plugin("plugin", schedule_step=hookimpl(function)))
    assert "of its hook 'schedule_step' is keyword-only, variadic or has a default, and would never be passed" in text


def test_an_argument_that_the_hook_does_not_have() -> None:
    text = refusal(plugin("plugin", schedule_step=hookimpl(lambda self, limit: None)))
    assert "its hook 'schedule_step': unknown argument 'limit' (did you mean 'limits'?): valid are limits" in text


@pytest.mark.parametrize(
    ("option", "marker"),
    [
        ("tryfirst", hookimpl(tryfirst=True)),
        ("trylast", hookimpl(trylast=True)),
        ("wrapper", hookimpl(wrapper=True)),
        ("hookwrapper", hookimpl(hookwrapper=True)),
        ("optionalhook", hookimpl(optionalhook=True)),
    ],
)
def test_an_order_of_its_own(option: str, marker: Any) -> None:
    text = refusal(plugin("plugin", observe=marker(lambda self: None)))
    assert f"its hook 'observe' is marked with {option}: order comes from the config" in text


def test_another_name_for_a_hook() -> None:
    text = refusal(plugin("plugin", watch=hookimpl(specname="observe")(lambda self: None)))
    assert "unknown hook 'watch'" in text


@pytest.mark.parametrize("api", [(HOOK_API[0] + 1, 0), (HOOK_API[0] - 1, 0), (HOOK_API[0], HOOK_API[1] + 1)])
def test_another_hook_api(api: tuple[int, int]) -> None:
    text = refusal(plugin("plugin", observe=observe, hook_api=api))
    assert f"it was written for hook API {api[0]}.{api[1]}, this engine has {HOOK_API[0]}.{HOOK_API[1]}" in text


@pytest.mark.parametrize("api", ["1.0", 1, (1,), (1, "0"), None])
def test_a_hook_api_that_is_none(api: object) -> None:
    text = refusal(plugin("plugin", observe=observe, hook_api=api))
    assert f"its `hook_api` is {api!r}, it must be two integers such as (1, 0)" in text


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (observe, "its entry point must name a class"),
        (Base(Base.Config()), "its entry point must name a class"),
        (plugin("other", observe=observe), "its `name` is 'other', it must equal the entry point's name"),
        (plugin("plugin", observe=observe, Config=dict), "it needs a nested class `Config(PluginConfig)`"),
        (plugin("plugin", observe=observe, Config=None), "it needs a nested class `Config(PluginConfig)`"),
        (plugin("plugin", observe=observe, equivalence="token_equal"), "it must declare `equivalence`"),
        (plugin("plugin"), "it implements no hook"),
        (plugin("plugin", allocate_kv=hookimpl(lambda self, spec: None)), "needs a method `kv_block_size(limits)"),
    ],
)
def test_what_else_a_plugin_must_have(cls: Any, problem: str) -> None:
    assert problem in refusal(cls)


def test_a_wrapper_needs_no_block_size() -> None:
    cls = plugin("plugin", allocate_kv=hookimpl(lambda self, inner: inner))
    assert check_class("plugin", cls) == ("allocate_kv",)


# -- relations ------------------------------------------------------------------------------------------------------


def test_what_is_required_must_be_on() -> None:
    needy = plugin("needy", observe=observe, requires=("paged_kv",))
    with pytest.raises(PluginError, match=r"^plugin 'needy' requires 'paged_kv': switch it on, or 'needy' off$"):
        registry_of(needy)
    registry_of(needy, plugin("paged_kv", observe=observe))


@pytest.mark.parametrize("first", [0, 1])
def test_what_conflicts_cannot_be_on_together(first: int) -> None:
    both = [plugin("loner", observe=observe, conflicts=("other",)), plugin("other", observe=observe)]
    with pytest.raises(PluginError, match=r"^plugins 'loner' and 'other' cannot both be on: switch one of them off$"):
        registry_of(both[first], both[1 - first])


# -- order and owners -----------------------------------------------------------------------------------------------


def answers(value: object) -> Callable[..., object]:
    return lambda self: value


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")])
def test_order_is_the_order_of_the_config(order: tuple[str, ...]) -> None:
    registry = registry_of(*(plugin(name, observe=hookimpl(answers(f"sink of {name}"))) for name in order))
    assert [(bound.plugin, bound.value) for bound in registry.every("observe")] == [
        (name, f"sink of {name}") for name in order
    ]


def test_who_answers_none_has_no_part() -> None:
    registry = registry_of(plugin("a", observe=hookimpl(answers(None))), plugin("b", observe=hookimpl(answers(1))))
    assert [bound.plugin for bound in registry.every("observe")] == ["b"]
    assert registry.without_effect() == {"a": "nothing took what it offers for observe"}


def test_the_first_that_does_not_refuse_takes_it() -> None:
    refuses = plugin("a", fused_ops=hookimpl(answers(Refusal(("too small", "too old")))))
    registry = registry_of(refuses, *(plugin(name, fused_ops=hookimpl(answers(name))) for name in "bc"))
    bound = registry.first("fused_ops", op="rope", device=None)
    assert bound is not None and bound.plugin == bound.value == "b"
    assert registry.refusals == {("fused_ops", "a"): ("too small", "too old")}
    assert registry.without_effect() == {
        "a": "too small; too old",
        "c": "nothing took what it offers for fused_ops",
    }


def test_wrappers_go_around_the_base_in_config_order() -> None:
    def around(name: str) -> type:
        return plugin(name, execute=hookimpl(lambda self, inner: f"{name}({inner})"))

    base = plugin("base", execute=hookimpl(answers("base")))
    registry = registry_of(around("outermost_last"), base, around("z"), around("a"))
    bound, wrappers = registry.wrapped("execute", workers=None)
    assert bound.value == "base"
    assert [each.value for each in wrappers] == [
        "outermost_last(base)",
        "z(outermost_last(base))",
        "a(z(outermost_last(base)))",
    ]


def test_a_wrapper_that_steps_aside_is_left_out() -> None:
    aside = plugin("aside", execute=hookimpl(lambda self, inner: None))
    last = plugin("last", execute=hookimpl(lambda self, inner: f"last({inner})"))
    registry = registry_of(plugin("base", execute=hookimpl(answers("base"))), aside, last)
    assert [each.value for each in registry.wrapped("execute", workers=None)[1]] == ["last(base)"]


def test_a_default_gives_way_and_two_plugins_do_not() -> None:
    policies = [plugin(name, schedule_step=hookimpl(lambda self: StaticBatching())) for name in ("left", "right")]
    assert registry_of().schedule(limits=LIMITS)[0].plugin == CORE
    assert registry_of(policies[0]).schedule(limits=LIMITS)[0].plugin == "left"
    with pytest.raises(PluginError, match=r"^plugins 'left' and 'right' both provide 'schedule_step', which has one"):
        registry_of(*policies).schedule(limits=LIMITS)


def test_an_implementation_gets_the_arguments_that_it_names() -> None:
    cls = plugin("plugin", allocate_kv=hookimpl(lambda self, num_blocks, spec: (num_blocks, spec)))
    cls.kv_block_size = lambda self, limits: 16  # type: ignore[attr-defined]
    registry = registry_of(cls)
    assert registry.wrapped("allocate_kv", spec="spec", block_size=16, num_blocks=3)[0].value == (3, "spec")


def test_registries_share_nothing() -> None:
    cls = plugin("plugin", observe=hookimpl(lambda self: self))
    left, right = registry_of(cls), registry_of(cls)
    assert left.plugins[0].instance is not right.plugins[0].instance
    left.every("observe")
    assert left.bindings and not right.bindings


def test_the_class_of_a_set_is_its_weakest() -> None:
    def of(*classes: Equivalence) -> Equivalence:
        made = [plugin(f"p{index}", observe=observe, equivalence=each) for index, each in enumerate(classes)]
        return registry_of(*made).equivalence()

    lossy = Equivalence("lossy", "perplexity difference", 0.5)
    assert of() == TOKEN_EQUAL
    assert of(TOKEN_EQUAL, DISTRIBUTION) == DISTRIBUTION
    assert of(lossy, DISTRIBUTION, Equivalence("lossy", "perplexity difference", 0.1)) == lossy


# -- whose fault ----------------------------------------------------------------------------------------------------


class Answer:
    """What a plugin answers with, from a module that is not the plugin's."""

    def act(self, call: Callable[[], object] | None = None) -> None:
        call() if call else self.helper()

    def helper(self) -> None:
        raise KeyError("x")


def function() -> None:
    raise KeyError("y")


def blamed(registry: Registry, act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return registry.blame(error)
    raise AssertionError("nothing was raised")


def test_an_answer_from_another_module_is_the_plugins() -> None:
    registry = registry_of(plugin("plugin", observe=hookimpl(answers(Answer()))))
    [bound] = registry.every("observe")
    # the method that was called is named, not what it calls
    assert str(blamed(registry, bound.value.act)) == "plugin 'plugin' failed in act: raised KeyError: 'x'"


def test_so_is_a_function() -> None:
    registry = registry_of(plugin("plugin", fused_ops=hookimpl(answers(function))))
    bound = registry.first("fused_ops", op="rope", device=None)
    assert bound is not None
    assert str(blamed(registry, bound.value)) == "plugin 'plugin' failed in function: raised KeyError: 'y'"


def test_of_two_plugins_it_is_the_inner_one() -> None:
    outer, inner = Answer(), Answer()
    registry = registry_of(
        plugin("outer", observe=hookimpl(answers(outer))), plugin("inner", observe=hookimpl(answers(inner)))
    )
    registry.every("observe")
    fault = blamed(registry, lambda: outer.act(inner.act))
    assert isinstance(fault, PluginFault) and fault.plugin == "inner"


def test_what_the_core_raises_is_nobodys() -> None:
    registry = registry_of(plugin("plugin", observe=observe))
    assert blamed(registry, lambda: Registry([PluginEntry("missing", {})], [])) is None


# -- installed distributions ----------------------------------------------------------------------------------------


def install(site: Path, distribution: str, source: str, entries: Mapping[str, str], version: str = "1.2.3") -> None:
    """A distribution as an installer leaves it: a module and the metadata beside it."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[switchgear.plugins]", *lines]) + "\n")


SOURCE = '''
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL

class Watcher:
    """Watches."""

    name = "watcher"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        """Nothing to set."""

    def __init__(self, config):
        pass

    @hookimpl
    def observe(self):
        return self

    def on_events(self, events):
        pass
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_installed_plugin_is_found_by_name(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    registry = Registry([PluginEntry("watcher", {})], [])
    [loaded] = registry.plugins
    assert (loaded.name, loaded.distribution, loaded.version) == ("watcher", "acme-watcher", "1.2.3")
    assert (loaded.summary, loaded.hooks) == ("Watches.", ("observe",))


def test_listing_imports_nothing(site: Path) -> None:
    install(site, "acme-broken", "raise AssertionError", {"broken": "acme_broken:Watcher"})
    assert available()["broken"].value == "acme_broken:Watcher"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import a_library_that_is_not_here", "ModuleNotFoundError: No module named 'a_library_that_is_not_here'"),
        ("raise OSError('no such device')", "OSError: no such device"),
        ("def f(:", "SyntaxError: "),
        ("", "AttributeError: module 'acme_broken' has no attribute 'Watcher'"),
    ],
)
def test_an_import_that_fails_names_the_distribution_and_the_cause(site: Path, source: str, cause: str) -> None:
    install(site, "acme-broken", source, {"broken": "acme_broken:Watcher"}, version="0.9")
    with pytest.raises(PluginError) as refused:
        Registry([PluginEntry("broken", {})], [])
    text = str(refused.value)
    assert text.startswith(f"plugin 'broken' of acme-broken 0.9 cannot be imported: {cause}") and "\n" not in text


def test_two_distributions_with_one_name(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    install(site, "zeta-watcher", SOURCE, {"watcher": "zeta_watcher:Watcher"})
    with pytest.raises(PluginError, match=r"^plugin name 'watcher' is taken twice, by .*-watcher and by .*-watcher: "):
        available()


def test_an_unknown_plugin_lists_what_is_installed(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    with pytest.raises(ConfigError, match=r"^unknown plugin 'wacher' \(did you mean 'watcher'\?\): valid are "):
        Registry([PluginEntry("wacher", {})], [])


def test_a_class_that_was_given_goes_before_an_installed_one(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    [loaded] = registry_of(plugin("watcher", observe=observe)).plugins
    assert (loaded.distribution, loaded.version) == ("plugins_of_this_test", "unpublished")


def test_every_default_answers_a_hook_it_names() -> None:
    registry = make_registry(Config())
    assert registry.plugins == ()
    assert registry.schedule(limits=LIMITS)[0].plugin == CORE
    assert registry.block_size(Limits(1, 1, 77)) == 77
