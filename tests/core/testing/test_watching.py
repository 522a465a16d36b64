"""A watched plugin is the same plugin."""

from __future__ import annotations

import numpy as np
from switchgear.core.interfaces import KVAllocator, PrefixMatcher, SharedBlocks
from switchgear.core.records import IntArray, KVView, Limits, Plan
from switchgear.core.registry import check_class, is_wrapper
from switchgear.core.testing.subject import Subject
from switchgear.core.testing.virtual_run import VirtualRun
from switchgear.core.testing.watching import Call, changes, snapshots, watch, watched


def test_the_registry_sees_the_same_hooks_and_arguments() -> None:
    subject = Subject("prefix_cache")
    cls = watch(subject.cls, lambda call: None)
    assert check_class("prefix_cache", cls) == subject.hooks
    assert is_wrapper(cls, "allocate_kv")
    assert (cls.__module__, cls.__doc__) == (subject.cls.__module__, subject.cls.__doc__)


def test_the_core_finds_the_optional_halves_of_an_answer() -> None:
    calls: list[Call] = []
    subject = Subject("prefix_cache")
    run = VirtualRun(subject.alone, [watch(subject.cls, calls.append)])
    allocator = run.engine.driver.allocator.value
    assert isinstance(allocator, KVAllocator) and isinstance(allocator, SharedBlocks)
    assert isinstance(allocator, PrefixMatcher) and allocator.key_scope == "tenant"
    assert allocator.num_free() == run.engine.parts.kv.num_blocks
    assert calls[-1].place == ("allocate_kv", "num_free")


def test_a_change_is_found_in_the_field_where_it_was_made() -> None:
    plan = Plan(np.arange(3), np.arange(3))
    limits = Limits(1, 1, 1), KVView(1, 1, 1)
    before = snapshots((limits, plan))
    assert changes(before, (limits, plan)) == ()
    plan.num_tokens[1] = 7
    assert changes(before, (limits, plan)) == ("argument 2 (Plan).num_tokens",)


class Rotation:
    """A function that says something of itself."""

    layouts = ("NSKD",)

    def __call__(self, x: IntArray) -> IntArray:
        return -x


def test_a_function_with_attributes_keeps_both() -> None:
    calls: list[Call] = []
    answer = watched(Rotation(), "fused_ops", object(), calls.append, lambda hook, method: None)
    assert answer.layouts == ("NSKD",) and callable(answer)
    assert answer(np.array([1, 2])).tolist() == [-1, -2]
    assert [call.place for call in calls] == [("fused_ops", "call")]
