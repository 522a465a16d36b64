"""What the registry refuses, because pluggy would accept it and do something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from switchgear.core.errors import PluginError
from switchgear.core.hooks import HOOK_API, hookimpl
from switchgear.core.registry import HOOKS, check_class

from .made_plugins import Base, observe, plugin, registry_of


def refusal(cls: Any) -> str:
    with pytest.raises(PluginError) as refused:
        check_class("plugin", cls)
    text = str(refused.value)
    assert text.startswith("plugin 'plugin' (") and "\n" not in text
    return text


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
