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
    windows = {group.window for group in spec}
    needed = {window: window_blocks(window) for window in windows if window is not None and None in windows}
    cut: dict[int, int] = {}
    while True:
        block_bytes = block_size * sum(group.bytes_per_token for number, group in enumerate(spec) if number not in cut)
        spent = block_size * sum(spec[number].bytes_per_token * count for number, count in cut.items())
        num_blocks = max(0, num_bytes - spent) // block_bytes
        found = {
            number: count
            for number, group in enumerate(spec)
            if number not in cut and (count := needed.get(group.window)) is not None and count < num_blocks
        }
        if not found:
            return tuple(replace(group, num_blocks=cut.get(number, num_blocks)) for number, group in enumerate(spec))
        cut |= found


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
