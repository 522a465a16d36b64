"""Tokens to text one at a time: what comes out is final, and all of it together equals decoding everything at once."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from .tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence. Holds back bytes that are not a whole character yet; constant work a token."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._stream: _Stream = _ByteStream(tokenizer) if tokenizer.is_byte_level else _PieceStream(tokenizer)

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens made certain."""
        text = ""
        for id in token_ids:
            self._tokenizer.check_id(id)
            if id not in self._skipped:
                text += self._stream.push(id)
        return text

    def flush(self) -> str:
        """What was held back, when no more tokens come; broken characters become U+FFFD."""
        return self._stream.flush()


class _Stream(Protocol):
    def push(self, id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteStream:
    """Byte-level BPE: a token is a run of bytes, so that only a cut UTF-8 character has to wait."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        return self._utf8.decode(self._tokenizer.token_bytes(id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _PieceStream:
    """Everything else, SentencePiece above all: a piece's text depends on its neighbours in two ways only.

    The first piece of a text may lose a leading space, so later ones are decoded behind an anchor whose text is known.
    Byte pieces (`<0xE2>`) stand for characters together with those beside them, so a run of them waits for its end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_first = True
        self._byte_run: list[int] = []

    def push(self, id: int) -> str:
        self._byte_run.append(id)
        return "" if self._tokenizer.is_byte_piece(id) else self.flush()

    def flush(self) -> str:
        run, self._byte_run = self._byte_run, []
        if not run:
            return ""
        if self._is_first:
            self._is_first = False
            return self._tokenizer.decode(run, skip_special=False)
        anchor, anchor_text = self._tokenizer.anchor
        return self._tokenizer.decode([anchor, *run], skip_special=False).removeprefix(anchor_text)
