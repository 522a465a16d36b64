"""The shape of a KV pool by the windows of its groups."""

from __future__ import annotations

from collections.abc import Sequence

from switchgear.core.records import KVGroup, KVSpec


def spec_of(windows: Sequence[int | None], num_blocks: int) -> KVSpec:
    """One group of one layer for each window, all with `num_blocks` blocks."""
    return tuple(
        KVGroup((layer,), "full" if window is None else "window", 1, 2, window, "none", 16, num_blocks)
        for layer, window in enumerate(windows)
    )
