"""The pool of cached blocks: what is found, what is given up first, what is shared, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence

from switchgear.core.records import NOT_HELD, Hit
from switchgear.plugins.paged_kv import BlockPool
from switchgear.plugins.prefix_cache import CachedPool

from .pools import spec_of


def cached_pool(num_blocks: int, block_size: int = 16, windows: Sequence[int | None] = (None,)) -> CachedPool:
    """windows: of each group of layers."""
    inner = BlockPool(block_size, [num_blocks] * len(windows))
    return CachedPool(inner, spec_of(windows, num_blocks), block_size, "tenant")


def keys_of(text: str) -> tuple[bytes, ...]:
    """A key for each letter, which stands for a full block and for all before it."""
    return tuple(text[:end].encode() for end in range(1, len(text) + 1))


def admit(cache: CachedPool, row: int, text: str, num_tokens: int | None = None) -> tuple[int, ...] | None:
    """What the core does for a new row, up to the commit of its prompt; the blocks that it was given on top of hits.

    text: one letter for each full block; num_tokens: with the part of a block that follows, here one token.
    """
    num_tokens = num_tokens or len(text) * cache.block_size + 1
    hit = cache.match(keys_of(text)[: (num_tokens - 1) // cache.block_size])
    if hit.num_tokens:
        cache.adopt(row, hit.blocks)
    slots = cache.grow(row, num_tokens)
    if slots is None:
        cache.release(row)
        return None
    cache.commit(row, num_tokens, keys_of(text))
    assert_clean(cache)
    return slots.blocks[0]


def assert_clean(cache: CachedPool) -> None:
    audit = cache.audit()
    assert audit.is_clean and audit.problems == ()
    assert isinstance(cache.inner, BlockPool)
    for group, blocks in zip(cache.groups, cache.inner.groups, strict=True):
        assert all(blocks.num_references[block] == 1 for block in group.evictable)
    assert audit.evictable == sum(len(group.evictable) for group in cache.groups)
    assert audit.free == sum(len(blocks.free) for blocks in cache.inner.groups)


def found(cache: CachedPool, text: str) -> tuple[int, ...]:
    return cache.match(keys_of(text)).blocks[0]


def evicted_order(cache: CachedPool, group: int = 0) -> list[str]:
    """The last letters of the cached blocks' keys, the next to go first."""
    cached = cache.groups[group]
    return [cached.key_of[block].decode()[-1] for block in cached.evictable]


def test_a_prompt_of_55_tokens_has_four_blocks_and_publishes_three() -> None:
    cache = cached_pool(10)
    assert admit(cache, 0, "abc", 55) == (0, 1, 2, 3)
    assert set(cache.groups[0].key_of) == {0, 1, 2}
    assert [cache.groups[0].num_holders[block] for block in range(4)] == [1, 1, 1, 1]
    # the second shares 48 tokens: it holds the three as well, and takes one block
    assert admit(cache, 1, "abc", 55) == (4,)
    assert cache.tables[1][0] == [0, 1, 2, 4]
    assert [cache.groups[0].num_holders[block] for block in range(5)] == [2, 2, 2, 1, 1]


def test_a_hit_is_the_longest_run_from_the_front() -> None:
    cache = cached_pool(10)
    admit(cache, 0, "abc")
    assert found(cache, "abc") == (0, 1, 2)
    assert found(cache, "abx") == (0, 1)
    assert found(cache, "xbc") == ()
    assert cache.match(keys_of("abx")) == Hit(((0, 1),), 32)
    assert cache.match(()) == Hit(((),), 0)


def test_a_hit_is_in_every_group() -> None:
    cache = cached_pool(10, windows=(None, None))
    admit(cache, 0, "ab")
    assert cache.match(keys_of("ab")) == Hit(((0, 1), (0, 1)), 32)
    admit(cache, 1, "ab")
    cache.release(0)
    cache.release(1)
    assert_clean(cache)


def test_a_hit_says_what_a_window_does_not_need() -> None:
    cache = cached_pool(10, windows=(None, 20, 33))
    admit(cache, 0, "abc")
    # 48 tokens: who goes on sees 19 of them, which lie in two blocks, or 32
    whole, narrow, wide = cache.match(keys_of("abc")).blocks
    assert whole == (0, 1, 2) and narrow == (NOT_HELD, 1, 2) and wide == (NOT_HELD, 1, 2)
    admit(cache, 1, "abc")
    assert cache.tables[1] == ([0, 1, 2, 4], [NOT_HELD, 1, 2, 4], [NOT_HELD, 1, 2, 4])
    cache.release(0)
    assert [list(group.evictable) for group in cache.groups] == [[], [0], [0]]
    assert_clean(cache)


def test_every_group_must_serve_a_hit() -> None:
    cache = cached_pool(10, block_size=4, windows=(None, 6, 10))
    admit(cache, 0, "abcdefg")
    cache.release(0)
    whole, narrow, wide = cache.groups
    assert cache.match(keys_of("abcdefg")).num_tokens == 28
    expected = [24, 20, 8, 4]
    # the whole one has six; those end in a gap of the narrow one; the wide one needs the third for five, four or three;
    # and two end in another gap of the narrow one
    for group, key in ((whole, b"abcdefg"), (narrow, b"abcdef"), (wide, b"abc"), (narrow, b"ab")):
        (block,) = group.blocks_of[key]
        group.evictable.move_to_end(block, last=False)
        group.evict(1)
        assert cache.match(keys_of("abcdefg")).num_tokens == expected.pop(0)
    assert_clean(cache)


def test_what_a_row_passed_is_evictable_and_the_last_goes_first() -> None:
    cache = cached_pool(10, block_size=4, windows=(None, 6))
    admit(cache, 0, "abcde")
    cache.trim(0, (0, 3))
    assert cache.tables[0][1][:3] == [NOT_HELD] * 3
    assert evicted_order(cache, group=1) == ["c", "b", "a"] and evicted_order(cache) == []
    cache.trim(0, (0, 4))
    assert evicted_order(cache, group=1) == ["c", "b", "a", "d"]
    assert cache.num_free() == 4, "as many as the group that keeps all has"
    assert_clean(cache)
    cache.release(0)
    assert evicted_order(cache, group=1) == ["c", "b", "a", "d", "e"]
    assert_clean(cache)


def test_room_is_made_in_the_group_that_lacks_it() -> None:
    cache = cached_pool(8, block_size=4, windows=(None, 4))
    admit(cache, 0, "abcde")
    cache.trim(0, (0, 4))
    assert cache.grow(1, 2 * 4) is not None
    whole, windowed = cache.groups
    assert (whole.num_evicted, windowed.num_evicted) == (0, 0)
    cache.release(0)
    assert cache.grow(1, 5 * 4) is not None
    assert (whole.num_evicted, windowed.num_evicted) == (2, 2)
    assert_clean(cache)


def test_the_cached_are_given_up_last_first_and_the_oldest_sequence_before_others() -> None:
    cache = cached_pool(10)
    admit(cache, 0, "abc", 55)  # blocks 0 1 2, and 3 for the rest
    admit(cache, 1, "xyz", 50)  # blocks 4 5 6, and 7
    cache.release(1)
    cache.release(0)
    # vLLM orders the free too; ours come first in any order, since nothing can be found in them
    assert cache.num_free() == 10 and evicted_order(cache) == ["z", "y", "x", "c", "b", "a"]
    assert admit(cache, 2, "n", 4 * 16) is not None and evicted_order(cache) == ["z", "y", "x", "c", "b", "a"]
    cache.grow(2, 6 * 16)
    assert evicted_order(cache) == ["x", "c", "b", "a"]
    assert found(cache, "xyz") == (4,) and found(cache, "abc") == (0, 1, 2)


def test_using_a_prefix_again_makes_it_the_last_to_go() -> None:
    cache = cached_pool(12)
    admit(cache, 0, "abc")
    admit(cache, 1, "xyz")
    cache.release(0)
    cache.release(1)
    admit(cache, 2, "ab")
    cache.release(2)
    assert evicted_order(cache) == ["c", "z", "y", "x", "b", "a"]


def test_what_was_released_is_found_until_it_is_overwritten() -> None:
    cache = cached_pool(4)
    admit(cache, 0, "ab")
    cache.release(0)
    assert admit(cache, 1, "ab") is not None and cache.tables[1][0][:2] == [0, 1]
    cache.release(1)
    assert admit(cache, 2, "vwx") is not None  # takes all four
    assert found(cache, "ab") == () and found(cache, "vwx") != ()
    assert cache.groups[0].num_evicted == 2


def test_what_a_row_found_is_not_evicted_for_it() -> None:
    cache = cached_pool(5)
    admit(cache, 0, "ab")  # the oldest
    cache.release(0)
    admit(cache, 1, "xy")
    cache.release(1)
    assert evicted_order(cache) == ["b", "a", "y", "x"]
    assert cache.inner.num_free() == 1
    assert admit(cache, 2, "abcd") == (2, 3, 4)
    assert cache.tables[2][0] == [0, 1, 2, 3, 4] and found(cache, "xy") == ()


def test_too_few_free_blocks_change_nothing() -> None:
    cache = cached_pool(6)
    admit(cache, 0, "ab")
    cache.release(0)
    admit(cache, 1, "xyz")
    before = cache.groups[0].num_holders.copy(), list(cache.groups[0].evictable), dict(cache.groups[0].key_of)
    assert cache.num_free() == 2
    assert admit(cache, 2, "abcd") is None, "two found, three more needed, none left"
    assert cache.grow(1, 7 * 16) is None
    assert (
        cache.groups[0].num_holders,
        list(cache.groups[0].evictable),
        cache.groups[0].key_of,
    ) == before and cache.groups[0].num_evicted == 0
    assert_clean(cache)


def test_nothing_is_evicted_for_a_copy_that_would_still_lack_a_block() -> None:
    cache = cached_pool(3, block_size=4)
    admit(cache, 0, "a", 6)
    admit(cache, 1, "x", 4)
    cache.fork(0, 2, 6)
    cache.release(1)
    assert cache.num_free() == 1
    assert cache.grow(2, 9) is None, "a copy of the half-filled block, and a new one"
    assert found(cache, "x") == (2,)
    assert cache.grow(2, 7) is not None and found(cache, "x") == ()


def test_a_sibling_that_copies_nothing_needs_no_block_for_it() -> None:
    cache = cached_pool(3, block_size=4)
    admit(cache, 0, "a", 6)
    admit(cache, 1, "x", 4)
    cache.fork(0, 2, 4)
    cache.release(1)
    assert cache.grow(2, 5) is not None and found(cache, "x") == ()


def test_a_block_that_is_taken_again_forgets_its_key() -> None:
    cache = cached_pool(2)
    admit(cache, 0, "a")
    cache.release(0)
    admit(cache, 1, "x")
    assert set(cache.groups[0].key_of.values()) == {b"x"} and set(cache.groups[0].blocks_of) == {b"x"}


def test_twins_coexist_while_they_are_used_and_one_of_them_stays() -> None:
    cache = cached_pool(9)
    for row in (0, 1):  # side by side: neither was published when the other began
        cache.match(keys_of("abc"))
        cache.grow(row, 49)
    for row in (0, 1):
        cache.commit(row, 49, keys_of("abc"))
    assert cache.groups[0].blocks_of[b"a"] == [0, 4]
    cache.release(0)
    assert_clean(cache)
    # vLLM keeps both until it needs the room; we keep the one in use, and have the room
    assert cache.groups[0].blocks_of[b"a"] == [4] and found(cache, "abc") == (4, 5, 6)
    assert (cache.inner.num_free(), len(cache.groups[0].evictable)) == (5, 0)
    cache.release(1)
    assert found(cache, "abc") == (4, 5, 6) and evicted_order(cache) == ["c", "b", "a"]


def test_whoever_leaves_first_the_rest_of_a_prefix_is_not_cut_from_its_front() -> None:
    cache = cached_pool(9)
    for row in (0, 1):
        cache.grow(row, 49)
    cache.commit(0, 49, keys_of("abc"))
    cache.commit(1, 49, keys_of("abd"))
    cache.release(0)
    cache.release(1)
    assert evicted_order(cache) == ["c", "d", "b", "a"]


def test_a_recomputed_block_takes_the_place_of_the_one_nobody_uses() -> None:
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.release(0)
    assert cache.grow(1, 33) is not None  # without looking, as a request that wants prompt_logprobs
    cache.commit(1, 33, keys_of("ab"))
    assert_clean(cache)
    assert found(cache, "ab") == tuple(cache.tables[1][0][:2]) and not cache.groups[0].evictable
    assert cache.groups[0].num_evicted == 0


def test_generated_tokens_fill_a_block_and_publish_it() -> None:
    cache = cached_pool(6, block_size=4)
    admit(cache, 0, "a", 6)
    assert found(cache, "ab") == (0,)
    for num_tokens in (7, 8):
        cache.grow(0, num_tokens)
        cache.commit(0, num_tokens, keys_of("ab"[: num_tokens // 4]))
    assert found(cache, "ab") == (0, 1)


def test_siblings_hold_what_the_parent_published_also_when_it_leaves_first() -> None:
    cache = cached_pool(8, block_size=4)
    admit(cache, 0, "ab", 9)
    cache.fork(0, 1, 8)
    cache.release(0)
    assert_clean(cache)
    assert not cache.groups[0].evictable and cache.num_free() == 6
    assert cache.grow(2, 6 * 4) is not None
    assert cache.grow(3, 1) is None, "nothing that the child holds is promised to others"
    assert cache.tables[1][0] == [0, 1]


def test_a_sibling_that_writes_into_a_published_block_copies_it() -> None:
    cache = cached_pool(8, block_size=4)
    admit(cache, 0, "ab", 8)
    cache.fork(0, 1, 7)
    slots = cache.grow(1, 8)
    assert slots is not None and [(copy.source, copy.target) for copy in slots.copies] == [(1, 2)]
    cache.commit(1, 8, keys_of("ab"))
    assert cache.groups[0].blocks_of[b"ab"] == [1, 2]
    cache.release(0)
    cache.release(1)
    assert_clean(cache)
    assert len(cache.groups[0].evictable) == 2


def test_a_pinned_block_is_not_evicted() -> None:
    cache = cached_pool(3)
    admit(cache, 0, "ab")
    blocks = (tuple(cache.tables[0][0][:1]),)
    cache.pin(blocks)
    cache.release(0)
    assert cache.num_free() == 2 and evicted_order(cache) == ["b"]
    assert cache.grow(1, 3 * 16) is None
    cache.unpin(blocks)
    assert cache.grow(1, 3 * 16) is not None
    assert_clean(cache)


def test_an_audit_finds_what_is_wrong() -> None:
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.groups[0].num_holders[0] -= 1
    assert cache.audit().problems == ("a cached block counts fewer holders than it has",)
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.groups[0].evictable[0] = None
    assert cache.audit().problems == ("a cached block that nobody holds is not evictable, or one that is held is",)


# -- what is counted ------------------------------------------------------------------------------------------------


def asked(cache: CachedPool) -> tuple[int, int]:
    return cache.num_queried, cache.num_hit


def test_an_admission_is_counted_once_however_often_it_was_tried() -> None:
    cache = cached_pool(6)
    admit(cache, 0, "abc")
    for _ in range(3):
        assert admit(cache, 1, "axyz") is None
    assert asked(cache) == (3, 0)
    cache.release(0)
    assert admit(cache, 1, "axyz") is not None
    assert asked(cache) == (3 + 4, 1)


def test_nothing_is_counted_where_nothing_was_asked() -> None:
    cache = cached_pool(6)
    cache.grow(0, 33)
    cache.commit(0, 33, keys_of("ab"))
    assert asked(cache) == (0, 0)
