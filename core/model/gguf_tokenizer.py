"""tokenizer.json and tokenizer_config.json rebuilt from a GGUF's metadata.

A GGUF stores the vocabulary and the merges, but of the text splitting before them only a name
(`tokenizer.ggml.pre`): what it stands for is in the table below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from ..errors import ModelError
from .gguf_file import GGUFFile

CONTROL = 3
USER_DEFINED = 4
"""Values of `tokenizer.ggml.token_type`: tokens that are matched in the text before any splitting."""

PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
}


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """The byte-level BPE of the file; ModelError for another model or an unknown way of splitting."""
    model, pre = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    make_pre_tokenizer = PRE_TOKENIZERS.get(pre)
    if model != "gpt2" or make_pre_tokenizer is None:
        raise ModelError(
            f"the GGUF's tokenizer ({model}, {pre}) is not supported; known: "
            f"{', '.join(f'(gpt2, {known})' for known in sorted(PRE_TOKENIZERS))} "
            "(other models load from a directory with a tokenizer.json)"
        )
    tokens = file.require("tokenizer.ggml.tokens")
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = [_split_merge(merge) for merge in file.require("tokenizer.ggml.merges")]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the Rust library raises bare Exception
        raise ModelError(f"{file.path} is damaged in its vocabulary ({error}); fetch it again") from error
    tokenizer.pre_tokenizer = make_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    token_types = file.require("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([_added(tokens[id]) for id, kind in enumerate(token_types) if kind == CONTROL])
    tokenizer.add_tokens([_added(tokens[id]) for id, kind in enumerate(token_types) if kind == USER_DEFINED])
    _add_post_processor(tokenizer, file, tokens)
    return tokenizer


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """Special tokens, chat template and context length under the names that transformers gives them."""
    tokens = file.require("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.require(f"{file.architecture}.context_length"),
        "add_bos_token": bool(file.get("tokenizer.ggml.add_bos_token", False)),
        "add_eos_token": bool(file.get("tokenizer.ggml.add_eos_token", False)),
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


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(token: str) -> AddedToken:
    return AddedToken(token, normalized=False)


def _add_post_processor(tokenizer: Tokenizer, file: GGUFFile, tokens: list[str]) -> None:
    """Put BOS and EOS around a text where the file asks for it."""
    before = _wanted(file, "bos")
    after = _wanted(file, "eos")
    if before is None and after is None:
        return
    ids = [id for id in (before, after) if id is not None]
    pieces = [tokens[before]] if before is not None else []
    pieces.append("$A")
    if after is not None:
        pieces.append(tokens[after])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, pair=None, special_tokens=[(tokens[id], id) for id in ids]
    )


def _wanted(file: GGUFFile, name: str) -> int | None:
    return file.get(f"tokenizer.ggml.{name}_token_id") if file.get(f"tokenizer.ggml.add_{name}_token", False) else None
