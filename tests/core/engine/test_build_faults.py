"""A plugin that fails while the engine is built: it does not start, and says in one sentence whose fault that is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.defaults import PlainLinears, StaticBatching
from switchgear.core.errors import PluginError
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Executor
from switchgear.core.records import Device, Limits, LinearSpec, Needs
from switchgear.core.registry import HOOKS

from .faulty import Boom, Faulty, FaultyAllocator, FaultyAttention

ONE_OWNER = ("schedule_step", "allocate_kv", "propose_tokens", "execute", "kv_codec")


def refusal(tiny_model: Path, *classes: type) -> str:
    """The sentence with which the engine refuses these plugins; nothing of it is left running."""
    plugins: dict[str, dict[str, Any]] = {str(cls.name): {} for cls in classes}  # type: ignore[attr-defined]
    num_threads = threading.active_count()
    with pytest.raises(PluginError) as refused:
        LLM(str(tiny_model), dtype="float32", plugins=plugins, plugin_classes=classes, max_model_len=64)
    assert threading.active_count() == num_threads
    text = str(refused.value)
    assert "\n" not in text
    return text


def plugin_with(its_name: str, hook: str, method: Any) -> type:
    """A plugin with one hook."""
    method.__name__ = hook
    members = {"name": its_name, hook: hookimpl(method), "kv_block_size": lambda self, limits: 16}
    return type("OneHook", (Faulty,), members)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises(tiny_model: Path, hook: str) -> None:
    def implementation(self: Faulty) -> None:
        raise Boom("at build")

    text = refusal(tiny_model, plugin_with("faulty", hook, implementation))
    if hook == "route":  # with one pool there is nothing to route, and nobody asks
        assert text.startswith("plugin 'faulty' is on and has no effect here")
    else:
        assert text == f"plugin 'faulty' failed in its hook {hook!r}: Boom: at build"


@pytest.mark.parametrize("hook", ["allocate_kv", "execute"])
def test_a_wrapper_that_raises(tiny_model: Path, hook: str) -> None:
    def implementation(self: Faulty, inner: object) -> None:
        raise Boom("at build")

    text = refusal(tiny_model, plugin_with("faulty", hook, implementation))
    assert text == f"plugin 'faulty' failed in its hook {hook!r}: Boom: at build"


@pytest.mark.parametrize("hook", HOOKS)
def test_a_plugin_whose_every_hook_is_silent_has_no_effect(tiny_model: Path, hook: str) -> None:
    text = refusal(tiny_model, plugin_with("faulty", hook, lambda self: None))
    assert text.startswith("plugin 'faulty' is on and has no effect here: nothing took what it offers for " + hook)


@pytest.mark.parametrize("hook", ONE_OWNER)
def test_two_providers_of_one_hook(tiny_model: Path, hook: str) -> None:
    def implementation(self: Faulty) -> object:
        return StaticBatching()  # what it is does not matter yet

    text = refusal(tiny_model, plugin_with("left", hook, implementation), plugin_with("right", hook, implementation))
    assert text == f"plugins 'left' and 'right' both provide {hook!r}, which has one owner: switch one of them off"


class Unbuildable(Faulty):
    """Cannot be made."""

    def __init__(self, config: Faulty.Config) -> None:
        raise Boom("no such device")

    @hookimpl
    def observe(self) -> None: ...


class RaisingBlockSize(FaultyAllocator):
    """Does not know how large its blocks are."""

    def kv_block_size(self, limits: Limits) -> int:
        raise Boom("too small")


class NoBlockSize(FaultyAllocator):
    """Wants blocks of no token."""

    def kv_block_size(self, limits: Limits) -> int:
        return 0


class RaisingNeeds(Faulty):
    """A policy that cannot say what it needs."""

    @hookimpl
    def schedule_step(self) -> StaticBatching:
        class Needy(StaticBatching):
            def needs(self) -> Needs:
                raise Boom("cannot tell")

        return Needy()


class Unstartable(Faulty):
    """An executor that does not start."""

    @hookimpl
    def execute(self, inner: Executor) -> Executor:
        def start() -> None:
            raise Boom("no such machine")

        inner.start = start  # type: ignore[method-assign]
        return inner


class Unallocatable(Faulty):
    """An executor that has no memory."""

    @hookimpl
    def execute(self, inner: Executor) -> Executor:
        def allocate(num_blocks: tuple[int, ...]) -> None:
            raise Boom("no memory")

        inner.allocate = allocate  # type: ignore[method-assign]
        return inner


class Unloadable(Faulty):
    """Linears that cannot be loaded."""

    @hookimpl
    def quantize(self, spec: LinearSpec, device: Device) -> object:
        recipe = PlainLinears().quantize(spec, device)

        class Recipe:
            def load(self, reader: object, spec: LinearSpec) -> object:
                raise Boom("no scales")

            def linear(self, x: object, params: object, out: object = None) -> object:
                raise AssertionError

            def report(self) -> object:
                return recipe.report()

        return Recipe()


class NeitherPolicyNorModifier(Faulty):
    """Answers with something else."""

    @hookimpl
    def schedule_step(self) -> str:
        return "first come, first served"


class OddLayout(FaultyAttention):
    """Names an axis that the cache has not."""

    @hookimpl
    def attention_impl(self, layer: Any, codec: Any) -> Any:
        impl = super().attention_impl(layer, codec)
        impl.layout = "NSHD"
        return impl


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (Unbuildable, "cannot be built: no such device"),
        (RaisingBlockSize, "failed in kv_block_size: raised Boom: too small"),
        (NoBlockSize, "wants 0 tokens a KV block: it must be 1 or more"),
        (RaisingNeeds, "failed in needs: raised Boom: cannot tell"),
        (Unstartable, "failed in start: raised Boom: no such machine"),
        (Unallocatable, "failed in allocate: raised Boom: no memory"),
        (Unloadable, "cannot load model.embed_tokens: no scales"),
        (NeitherPolicyNorModifier, "neither `plan` (a policy) nor `revise` (a modifier)"),
        (OddLayout, "names the cache layout 'NSHD': it must be a permutation of 'NSKD'"),
    ],
)
def test_other_ways_to_fail_at_build(tiny_model: Path, plugin: type, expected: str) -> None:
    text = refusal(tiny_model, plugin)
    assert text.startswith("plugin 'faulty' ")
    assert expected in text


def test_a_refused_engine_harms_no_other(tiny_model: Path) -> None:
    class Silent(Faulty):
        """Offers a stage, and answers nothing else."""

        @hookimpl
        def on_ingress(self) -> None:
            raise Boom("at build")

    params = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM(str(tiny_model), dtype="float32", plugins={}, max_model_len=64) as llm:
        [before] = llm.generate([5, 6, 7], params)
        refusal(tiny_model, Silent)
        [after] = llm.generate([5, 6, 7], params)
    assert after.token_ids == before.token_ids
