"""What each token of a model stands for, as bytes: what an output adds up to, token by token."""

from __future__ import annotations

from ..records import Vocabulary
from .tokenizer import Tokenizer


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The model's first `vocab_size` ids, as the detokenizer writes them behind other tokens."""
    token_bytes = tuple(bytes_of(tokenizer, id) if id < tokenizer.vocab_size else b"" for id in range(vocab_size))
    return Vocabulary(token_bytes, frozenset(id for id in tokenizer.special_ids if id < vocab_size))


def bytes_of(tokenizer: Tokenizer, id: int) -> bytes:
    """What one token adds to a text, behind another token; a special one is spelled out."""
    if tokenizer.is_byte_level:
        return tokenizer.token_bytes(id)
    if tokenizer.is_byte_piece(id):
        return bytes([tokenizer.byte_of_piece(id)])
    anchor, anchor_text = tokenizer.anchor
    return tokenizer.decode([anchor, id], skip_special=False).removeprefix(anchor_text).encode()
