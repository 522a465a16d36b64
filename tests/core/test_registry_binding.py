"""Plugins are bound in the order of the config, one owner where there is one, and each fault to whose it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from switchgear.core.config import PluginEntry
from switchgear.core.defaults import StaticBatching
from switchgear.core.errors import PluginError, PluginFault
from switchgear.core.hooks import hookimpl
from switchgear.core.records import DISTRIBUTION, TOKEN_EQUAL, Equivalence, Refusal
from switchgear.core.registry import CORE, Registry

from .made_plugins import LIMITS, answers, observe, plugin, registry_of


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
