"""How many blocks each group of layers gets, and which allocators are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.engine.kv_pool import sized
from switchgear.core.errors import PluginError
from switchgear.core.records import KVGroup, KVSpec

from .build import virtual_engine
from .paged import PagedKV
from .prefix import CachedBlocks, PrefixCache
from .virtual import MAX_MODEL_LEN, WINDOW

BLOCK_SIZE = 4


def group_of(window: int | None, bytes_per_token: int) -> KVGroup:
    return KVGroup((0,), "full" if window is None else "window", 1, 2, window, "none", bytes_per_token)


def counts(spec: KVSpec, num_bytes: int, needed: dict[int, int]) -> list[int]:
    return [group.num_blocks for group in sized(spec, num_bytes, BLOCK_SIZE, needed.get)]


def test_groups_without_a_window_have_equal_shares() -> None:
    assert counts((group_of(None, 16),), 4 * 16 * 10 + 63, {}) == [10]
    assert counts((group_of(None, 16), group_of(None, 48)), 4 * 64 * 10, {}) == [10, 10]


def test_what_a_window_does_not_need_goes_to_those_who_see_everything() -> None:
    spec = group_of(8, 80), group_of(None, 16)
    assert counts(spec, 4 * 96 * 100, {}) == [100, 100]
    # 80 blocks of 80 bytes a token are 400 blocks of 16
    assert counts(spec, 4 * 96 * 100, {8: 20}) == [20, 500]
    assert counts(spec, 4 * 96 * 100, {8: 100}) == counts(spec, 4 * 96 * 100, {8: 1000}) == [100, 100]


def test_a_wider_window_is_cut_once_a_narrow_one_has_given_up_its_share() -> None:
    spec = group_of(8, 16), group_of(64, 16), group_of(None, 16)
    # of 300 shares the narrow one leaves 290 for two, of which the wide one needs 120
    assert counts(spec, 4 * 16 * 300, {8: 10, 64: 120}) == [10, 120, 170]


def test_where_nothing_sees_everything_a_window_keeps_what_there_is() -> None:
    assert counts((group_of(8, 16),), 4 * 16 * 50, {8: 10}) == [50]


@given(
    st.lists(st.tuples(st.sampled_from([None, 8, 64]), st.integers(1, 50)), min_size=1, max_size=4),
    st.integers(0, 100_000),
    st.integers(1, 200),
    st.integers(1, 200),
)
def test_the_pool_never_exceeds_its_bytes_and_leaves_no_block_unused(
    shapes: list[tuple[int | None, int]], num_bytes: int, narrow: int, wide: int
) -> None:
    needed = {8: narrow, 64: wide}
    spec = sized(tuple(group_of(*shape) for shape in shapes), num_bytes, BLOCK_SIZE, needed.get)
    most = max(group.num_blocks for group in spec)
    uncut = [group for group in spec if group.num_blocks == most]
    assert sum(group.num_blocks * group.bytes_per_token for group in spec) * BLOCK_SIZE <= num_bytes
    assert all(group.num_blocks == needed[group.window or 0] for group in spec if group not in uncut)
    one_more = sum((group.num_blocks + (group in uncut)) * group.bytes_per_token for group in spec)
    assert one_more * BLOCK_SIZE > num_bytes


# -- allocators that lack something ---------------------------------------------------------------------------------


def test_a_matcher_that_does_not_say_whose_blocks_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CachedBlocks, "key_scope")
    text = "^the allocator of plugin 'prefix' has `match` and does not say whose blocks it finds: give it key_scope = "
    with pytest.raises(PluginError, match=text):
        virtual_engine(PagedKV, PrefixCache, num_blocks=16, block_size=4)


def test_a_matcher_whose_blocks_cannot_be_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CachedBlocks, "adopt")
    with pytest.raises(PluginError, match="'prefix' has `match`, and its blocks cannot be adopted: give it `adopt`, "):
        virtual_engine(PagedKV, PrefixCache, num_blocks=16, block_size=4)


def test_a_base_that_does_not_say_what_windows_need_has_equal_groups() -> None:
    engine = virtual_engine(PagedKV, num_blocks=200, block_size=4, num_groups=2)
    assert [group.num_blocks for group in engine.parts.kv_spec] == [200, 200]


def test_a_wrapper_that_does_not_pass_on_what_windows_need() -> None:
    class Claims(PagedKV):
        """Says what windows need, and takes nothing back."""

        def kv_window_blocks(self, window: int, limits: Any) -> int:
            assert (window, limits.max_model_len) == (WINDOW, MAX_MODEL_LEN)
            return 10

    with pytest.raises(PluginError, match=r"^the allocator of plugin 'paged' lacks `trim`, without which rows run out"):
        virtual_engine(Claims, num_blocks=16, block_size=4, num_groups=2)
