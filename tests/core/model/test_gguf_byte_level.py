import json
from typing import Any

import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.model.gguf_byte_level import SPLITS, build_byte_level
from switchgear.core.testing.tiny import make_tiny_tokenizer
from tokenizers import decoders

ORIGINAL = make_tiny_tokenizer()
TEXTS = st.text() | st.text("the Switch's 012\n\r\t .,/'\u0301\u00e9\u65e5\u0416")


PAIRS: Any = [tuple(pair) for pair in json.loads(ORIGINAL.to_str())["model"]["merges"]]
MERGES = [" ".join(pair) for pair in PAIRS]
QWEN2 = build_byte_level(ORIGINAL.get_vocab(), MERGES, SPLITS["qwen2"])
THEIR_QWEN2 = transformers.Qwen2Tokenizer(vocab=ORIGINAL.get_vocab(), merges=PAIRS)
GPT2 = build_byte_level(ORIGINAL.get_vocab(), MERGES, SPLITS["gpt-2"])
THEIR_GPT2 = transformers.GPT2Tokenizer(vocab=ORIGINAL.get_vocab(), merges=PAIRS)


def _words(name: str, text: str) -> list[str]:
    """The words that the name's way of splitting cuts the text into."""
    pieces = SPLITS[name].pre_tokenizer().pre_tokenize_str(text)
    return [decoders.ByteLevel().decode([piece]) for piece, _ in pieces]


@given(text=TEXTS)
def test_qwen2_equals_transformers(text: str) -> None:
    assert QWEN2.encode(text).ids == THEIR_QWEN2(text)["input_ids"]


@given(text=TEXTS)
def test_gpt2_equals_transformers(text: str) -> None:
    assert GPT2.encode(text).ids == THEIR_GPT2(text)["input_ids"]


def test_llama3_takes_up_to_three_digits_and_a_sign_before_a_word() -> None:
    assert _words("llama-bpe", "In 12345 she'LL (say)\n\n  so!") == [
        "In", " ", "123", "45", " she", "'LL", " (", "say", ")\n\n", " ", " so", "!",
    ]  # fmt: skip
    assert SPLITS["llama-bpe"] is SPLITS["llama3"] is SPLITS["llama-v3"]


def test_qwen2_takes_single_digits() -> None:
    assert _words("qwen2", "In 123") == ["In", " ", "1", "2", "3"]


def test_tekken_cuts_before_a_capital_letter_and_keeps_slashes_with_signs() -> None:
    assert _words("tekken", "HelloWorld it's 12 //\nHTTP") == [
        "Hello", "World", " it", "'s", " ", "1", "2", " //\n", "HTTP",
    ]  # fmt: skip


def test_gpt2_keeps_numbers_whole() -> None:
    assert _words("gpt-2", "In 123 days") == ["In", " 123", " days"]


def test_known_words_need_no_merges_where_the_family_says_so() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    assert build_byte_level(vocabulary, [], SPLITS["tekken"]).encode("ab").ids == [2]
    assert build_byte_level(vocabulary, [], SPLITS["qwen2"]).encode("ab").ids == [0, 1]


@given(text=TEXTS)
def test_every_text_comes_back(text: str) -> None:
    for name in SPLITS:
        if SPLITS[name].normalizer is None:
            tokenizer: tokenizers.Tokenizer = build_byte_level(ORIGINAL.get_vocab(), MERGES, SPLITS[name])
            assert tokenizer.decode(tokenizer.encode(text).ids) == text
