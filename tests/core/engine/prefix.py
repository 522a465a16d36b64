"""A prefix cache for tests, wrapped around the paged allocator: committed blocks stay until somebody needs the room."""

from __future__ import annotations

from typing import Literal

from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Audit, Hit, Slots

from .paged import Blocks, PagedBlocks


class CachedBlocks:
    """Keeps a pin on each block it knows by key; of those nobody else holds, the one cached first goes first."""

    key_scope: Literal["tenant", "shared"] = "tenant"

    def __init__(self, inner: PagedBlocks) -> None:
        self.inner = inner
        self.cached: dict[bytes, Blocks] = {}
        self.probes: list[tuple[bytes, ...]] = []
        """The keys of every probe, for tests to look at."""
        self.hits: list[int] = []
        """Tokens that each probe found."""

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        found: list[Blocks] = []
        for key in keys:
            if key not in self.cached:
                break
            found.append(self.cached[key])
        self.probes.append(keys)
        self.hits.append(len(found) * self.inner.block_size)
        blocks = tuple(
            tuple(number for blocks in found for number in blocks[group]) for group in range(self.inner.num_groups)
        )
        return Hit(blocks, len(found) * self.inner.block_size)

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        slots = self.inner.grow(row, num_tokens)
        while slots is None and (idle := self._idle()):
            self.inner.unpin(self.cached.pop(idle[0]))
            slots = self.inner.grow(row, num_tokens)
        return slots

    def _idle(self) -> list[bytes]:
        """Keys of blocks that only the cache holds."""
        counts = [self.inner._counts(group) for group in range(self.inner.num_groups)]
        return [key for key, blocks in self.cached.items() if all(counts[g][b[0]] == 1 for g, b in enumerate(blocks))]

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        assert len(keys) == num_tokens // self.inner.block_size, "one key for each full block"
        self.inner.commit(row, num_tokens, ())
        for place, key in enumerate(keys):
            if key not in self.cached:
                self.cached[key] = tuple((table[place],) for table in self.inner.tables[row])
                self.inner.pin(self.cached[key])

    def release(self, row: int) -> None:
        self.inner.release(row)

    def num_free(self) -> int:
        return self.inner.num_free() + len(self._idle())

    def adopt(self, row: int, blocks: Blocks) -> None:
        self.inner.adopt(row, blocks)

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        return self.inner.fork(parent, row, num_tokens)

    def pin(self, blocks: Blocks) -> None:
        self.inner.pin(blocks)

    def unpin(self, blocks: Blocks) -> None:
        self.inner.unpin(blocks)

    def audit(self) -> Audit:
        audit = self.inner.audit()
        num_evictable = len(self._idle()) * self.inner.num_groups
        return Audit(audit.total, audit.free, audit.held - num_evictable, num_evictable, audit.problems)


class PrefixCache:
    """Finds the blocks of a prompt that were computed before."""

    name = "prefix"
    equivalence = TOKEN_EQUAL
    requires = ("paged",)

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.allocators: list[CachedBlocks] = []

    @hookimpl
    def allocate_kv(self, inner: PagedBlocks) -> CachedBlocks:
        self.allocators.append(CachedBlocks(inner))
        return self.allocators[-1]
