"""The KV pool before there are rows: how many blocks each group of layers gets, and what an allocator has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import PluginError
from ..interfaces import KVAllocator, matches_prefixes, shares_blocks, trims_blocks
from ..records import KVSpec
from ..registry import Bound


def sized(spec: KVSpec, num_bytes: int, block_size: int, window_blocks: Callable[[int], int | None]) -> KVSpec:
    """The groups with their shares of `num_bytes`: as many blocks in each, but in no window group more than it needs.

    What windows leave goes to the groups that see everything; where there is none, nobody could use it. window_blocks:
    the most blocks that are ever needed for a window.
    """
    may_cut = any(group.window is None for group in spec)
    needed = [window_blocks(group.window) if may_cut and group.window is not None else None for group in spec]
    cut: dict[int, int] = {}
    while True:
        spent = sum(spec[number].bytes_per_token * count for number, count in cut.items())
        others = sum(group.bytes_per_token for number, group in enumerate(spec) if number not in cut)
        num_blocks = max(0, num_bytes // block_size - spent) // others
        # what one gives up may let the others have more than a further one needs
        further = {
            number: count
            for number, count in enumerate(needed)
            if count is not None and count < num_blocks and number not in cut
        }
        if not further:
            return tuple(replace(group, num_blocks=cut.get(number, num_blocks)) for number, group in enumerate(spec))
        cut |= further


def check_allocator(allocator: Bound[KVAllocator], spec: KVSpec) -> None:
    """Raise PluginError for an allocator that lacks what another part of it promises."""
    name, value = allocator.plugin, allocator.value
    if matches_prefixes(value):
        if getattr(value, "key_scope", None) not in ("tenant", "shared"):
            raise PluginError(
                f"the allocator of plugin {name!r} has `match` and does not say whose blocks it finds: give it "
                'key_scope = "tenant" or "shared"'
            )
        if not shares_blocks(value):
            raise PluginError(
                f"the allocator of plugin {name!r} has `match`, and its blocks cannot be adopted: give it `adopt`, "
                "`fork`, `pin` and `unpin`"
            )
    if len({group.num_blocks for group in spec}) > 1 and not trims_blocks(value):
        raise PluginError(
            f"the allocator of plugin {name!r} lacks `trim`, without which rows run out of the blocks of layers that "
            "see a window: pass it on to the allocator that it wraps"
        )
