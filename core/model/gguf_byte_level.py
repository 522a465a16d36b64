"""Byte-level BPE from a GGUF: a text is cut into words, then bytes are joined within each.

Of the cutting a GGUF stores only a name (`tokenizer.ggml.pre`): what it stands for is in the table below, which holds
the names whose meaning is certain; another way of cutting gives other tokens without any error, so others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words with one character before them, numbers of up to three digits, punctuation, line ends, spaces."""

QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same with single digits."""

TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words also end where a capital letter follows a small one."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one name stands for."""

    pre_tokenizer: Callable[[], PreTokenizer]
    normalizer: Callable[[], Normalizer] | None = None
    keeps_known_words: bool = False
    """A word that is a token is one, even if no merges lead to it."""
    adds_bos: bool = False
    """Unless the file says otherwise."""


def _by_regex(pattern: str) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_llama3 = Split(_by_regex(LLAMA3), keeps_known_words=True, adds_bos=True)

SPLITS: Mapping[str, Split] = {
    "gpt-2": Split(_gpt2),
    "llama-bpe": _llama3,
    "llama-v3": _llama3,
    "llama3": _llama3,
    "qwen2": Split(_by_regex(QWEN2), normalizer=normalizers.NFC),
    "smollm": Split(_smollm),
    "tekken": Split(_by_regex(TEKKEN), keeps_known_words=True, adds_bos=True),
}


def build_byte_level(vocabulary: Mapping[str, int], merges: Sequence[str], split: Split) -> Tokenizer:
    """merges: "left right", the first to be joined first."""
    pairs = [_split_merge(merge) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=pairs, ignore_merges=split.keeps_known_words))
    if split.normalizer is not None:
        tokenizer.normalizer = split.normalizer()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
