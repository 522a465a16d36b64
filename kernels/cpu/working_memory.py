"""Working memory that recordings share: what one of them no longer needs goes to what it makes next.

Only one recording runs at a time, and it computes anew all that it reads of this memory, so each may begin with all of
it. Within one, the memory of a tensor that is gone is used again, as an allocator would do: it is still in the cache.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import torch

from .memory import Arena

SMALLEST = 64
"""Bytes of the smallest piece. Each size is twice the one before, so that few rows more take the same pieces."""


class Pieces:
    """Pieces of memory that nobody uses, by size. They are never given back: the largest recording needs them all."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self.num_bytes = 0
        """Of all pieces, in use or not."""

    def spoil(self) -> None:
        """Overwrite what lies in pieces that nobody holds, with what is no number in any precision."""
        for pieces in self.free.values():
            for piece in pieces:
                piece.fill_(0xFF)

    def take(self, size: int) -> torch.Tensor:
        """`[size]` uint8 for one of the sizes; the piece that was given back last is taken first."""
        if self.free[size]:
            return self.free[size].pop()
        self.num_bytes += size
        return self.arena.take(size)


class Lease:
    """The pieces that one recording holds while it is made."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.held: dict[int, torch.Tensor] = {}
        """By address."""

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of the same form in a piece, which is free again when the last view of it is gone."""
        last = sum((count - 1) * stride for count, stride in zip(like.shape, like.stride(), strict=True))
        num_bytes = 0 if not like.numel() else (last + 1) * like.itemsize
        piece = self.pieces.take(max(SMALLEST, 1 << max(0, num_bytes - 1).bit_length()))
        self.held[piece.data_ptr()] = piece
        buffer = piece.numpy()
        # the storage refers to its buffer as long as it lives
        weakref.finalize(buffer, self._give_back, piece.data_ptr()).atexit = False
        flat = torch.frombuffer(buffer, dtype=like.dtype)
        return flat.as_strided(like.shape, like.stride())

    def _give_back(self, address: int) -> None:
        piece = self.held.pop(address, None)
        if piece is not None:
            self.pieces.free[len(piece)].append(piece)

    def end(self) -> None:
        """The recording is made. What it still refers to keeps its place, and is computed anew when it runs."""
        for address in [*self.held]:
            self._give_back(address)
