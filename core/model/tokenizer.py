"""Text to token ids and back, through the model's own tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import decoders

from ..errors import ModelError, RequestError
from .files import ModelFiles

BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")


def _byte_of_character() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: the printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()


class Tokenizer:
    """One model's tokenizer. Safe to share between threads."""

    def __init__(self, files: ModelFiles) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:  # the Rust library raises bare Exception
            raise ModelError(
                f"{files.tokenizer} is not a readable tokenizer ({error}); fetch the model again"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        text_config = files.config.get("text_config") or files.config  # a model for more than text has one for it
        self.vocab_size: int = max(self._tokenizer.get_vocab_size(), int(text_config.get("vocab_size", 0)))
        """Ids below it can be decoded; those that only pad the model's head decode to nothing."""
        self.special_ids: frozenset[int] = frozenset(
            id for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.bos_id: int | None = self._special_id(files.tokenizer_config.get("bos_token"))
        self.eos_ids: frozenset[int] = self._find_eos_ids(files)
        self.is_byte_level: bool = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        """Whether each token stands for a run of bytes, whatever its neighbours."""
        self._bytes_of: dict[int, bytes] = {}

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`; `add_special` adds what the model's tokenizer.json puts around a text (such as BOS)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has a lone surrogate at character {error.start}; send valid Unicode"
            ) from error
        # the one way that does not keep other threads waiting meanwhile
        [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = encoded.ids
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 come out as U+FFFD."""
        ids = list(ids)
        for id in ids:
            self.check_id(id)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def check_id(self, id: int) -> None:
        """RequestError for an id that is not in the vocabulary."""
        if not 0 <= id < self.vocab_size:
            raise RequestError(f"token id {id} is out of range; this model's ids go from 0 to {self.vocab_size - 1}")

    def token_bytes(self, id: int) -> bytes:
        """What a token of a byte-level vocabulary stands for; nothing for an id that only pads the model's head."""
        known = self._bytes_of.get(id)
        if known is None:
            token = self._tokenizer.id_to_token(id) or ""
            try:
                known = bytes(BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:  # an added token in plain text
                known = token.encode()
            self._bytes_of[id] = known
        return known

    def is_byte_piece(self, id: int) -> bool:
        """Whether the token is `<0xE2>` or the like: one byte of a character that has no piece of its own."""
        return BYTE_PIECE.fullmatch(self._tokenizer.id_to_token(id) or "") is not None

    def byte_of_piece(self, id: int) -> int:
        """The byte that a byte piece stands for."""
        return int((self._tokenizer.id_to_token(id) or "")[1:-1], 16)

    @cached_property
    def anchor(self) -> tuple[int, str]:
        """A token and its text, such that other tokens decoded behind it lose nothing at their start."""
        for id in range(self._tokenizer.get_vocab_size()):
            text = self._tokenizer.decode([id])
            if len(text) == 1 and text.isalnum() and not self.is_byte_piece(id):
                return id, text
        raise ModelError("the tokenizer has no token for a single letter or digit; use a model with another tokenizer")

    def _special_id(self, token: Any) -> int | None:
        """tokenizer_config.json spells a special token as a string or as an AddedToken object."""
        text = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(text) if isinstance(text, str) else None

    def _find_eos_ids(self, files: ModelFiles) -> frozenset[int]:
        declared = files.generation_config.get("eos_token_id", files.config.get("eos_token_id"))
        ids = set(declared if isinstance(declared, list) else [declared])
        ids.add(self._special_id(files.tokenizer_config.get("eos_token")))
        return frozenset(id for id in ids if isinstance(id, int))
