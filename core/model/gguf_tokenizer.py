"""tokenizer.json and tokenizer_config.json rebuilt from a GGUF's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from ..errors import ModelError
from .gguf_byte_level import SPLITS, build_byte_level
from .gguf_file import GGUFFile
from .gguf_pieces import build_pieces


class Kind(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


SPECIAL = frozenset({Kind.UNKNOWN, Kind.CONTROL})
"""Matched in the text before anything else, and left out of what is shown to a user."""


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Byte-level BPE or SentencePiece, as the file says; ModelError for another kind or an unknown way of splitting."""
    tokens, kinds = _stored_tokens(file), file.require("tokenizer.ggml.token_type")
    make = _pieces(file, tokens, kinds) if _is_pieces(file) else _byte_level(file, tokens)
    try:
        tokenizer = make()
    except Exception as error:  # the Rust library raises bare Exception
        raise ModelError(f"{file.path} is damaged in its vocabulary ({error}); fetch it again") from error
    tokenizer.add_special_tokens([_added(token) for id, token in tokens.items() if kinds[id] in SPECIAL])
    tokenizer.add_tokens([_added(token) for id, token in tokens.items() if kinds[id] == Kind.USER_DEFINED])
    _add_post_processor(tokenizer, file, tokens)
    return tokenizer


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """Special tokens, chat template and context length under the names that transformers gives them."""
    tokens = file.require("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.require(f"{file.architecture}.context_length"),
        "add_bos_token": _is_added(file, "bos"),
        "add_eos_token": _is_added(file, "eos"),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        id = file.get(f"tokenizer.ggml.{key}_token_id")
        if id is not None:
            config[f"{name}_token"] = tokens[id]
    template = file.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def _stored_tokens(file: GGUFFile) -> dict[int, str]:
    """By id, without those that only make the vocabulary as long as the model's head."""
    tokens = file.require("tokenizer.ggml.tokens")
    return {id: token for id, token in enumerate(tokens) if token != f"[PAD{id}]"}


def _is_pieces(file: GGUFFile) -> bool:
    """Whether the vocabulary is SentencePiece's; ModelError if it is neither that nor a known byte-level one."""
    model, pre = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "none")
    if model == "llama":
        return True
    if model != "gpt2" or pre not in SPLITS:
        raise ModelError(
            f"the GGUF's tokenizer ({model}, {pre}) is not supported; known: (llama), "
            f"{', '.join(f'(gpt2, {known})' for known in SPLITS)} "
            "(other models load from a directory with a tokenizer.json)"
        )
    return False


def _pieces(file: GGUFFile, tokens: Mapping[int, str], kinds: Sequence[int]) -> Callable[[], Tokenizer]:
    scores = file.require("tokenizer.ggml.scores")
    normal = {token: scores[id] for id, token in tokens.items() if kinds[id] == Kind.NORMAL}
    unknown = tokens.get(file.get("tokenizer.ggml.unknown_token_id", -1))
    adds_prefix_space = file.get("tokenizer.ggml.add_space_prefix", True)
    return partial(build_pieces, _ids(tokens), normal, unknown, adds_prefix_space)


def _byte_level(file: GGUFFile, tokens: Mapping[int, str]) -> Callable[[], Tokenizer]:
    merges = file.require("tokenizer.ggml.merges")
    return partial(build_byte_level, _ids(tokens), merges, SPLITS[file.require("tokenizer.ggml.pre")])


def _ids(tokens: Mapping[int, str]) -> dict[str, int]:
    return {token: id for id, token in tokens.items()}


def _added(token: str) -> AddedToken:
    return AddedToken(token, normalized=False)


def _add_post_processor(tokenizer: Tokenizer, file: GGUFFile, tokens: Mapping[int, str]) -> None:
    """Put BOS and EOS around a text where the file asks for it."""
    before, after = _added_id(file, "bos"), _added_id(file, "eos")
    ids = [id for id in (before, after) if id is not None]
    if not ids:
        return
    pieces = [tokens[before]] if before is not None else []
    pieces.append("$A")
    if after is not None:
        pieces.append(tokens[after])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, pair=None, special_tokens=[(tokens[id], id) for id in ids]
    )


def _added_id(file: GGUFFile, name: str) -> int | None:
    return file.get(f"tokenizer.ggml.{name}_token_id") if _is_added(file, name) else None


def _is_added(file: GGUFFile, name: str) -> bool:
    """Whether "bos" or "eos" goes around each text; files that do not say so mean what their kind usually does."""
    usual = name == "bos" and (_is_pieces(file) or SPLITS[file.require("tokenizer.ggml.pre")].adds_bos)
    return bool(file.get(f"tokenizer.ggml.add_{name}_token", usual))
