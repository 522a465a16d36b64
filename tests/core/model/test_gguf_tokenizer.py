from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.model.gguf_tokenizer import build_tokenizer, tokenizer_config
from switchgear.core.testing.gguf_writer import finish
from switchgear.core.testing.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from switchgear.core.testing.tiny_gguf import make_tiny_gguf
from tokenizers import Tokenizer

ORIGINAL = make_tiny_tokenizer()
CONTROL, NORMAL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED
TOKENS = ["<|end|>", "<|user|>", "a", "b", "ab", "[tool]"]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build_tokenizer(GGUFFile(make_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")))


def _vocabulary_file(path: Path, **metadata: Any) -> GGUFFile:
    """A GGUF that holds a vocabulary only; `metadata` are keys below `tokenizer.ggml`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model(metadata.pop("model", "gpt2"))
    writer.add_tokenizer_pre(metadata.pop("pre", "smollm"))
    writer.add_token_list(metadata.pop("tokens", TOKENS))
    writer.add_token_types(metadata.pop("kinds", [CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, USER_DEFINED]))
    writer.add_token_merges(["a b"])
    if "scores" in metadata:
        writer.add_token_scores(metadata.pop("scores"))
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
    finish(writer)
    return GGUFFile(path)


def _pieces_file(path: Path, **metadata: Any) -> GGUFFile:
    """A SentencePiece vocabulary in the manner of Llama 2, with a run of two spaces as a token of its own."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "  ", "\u2581a", "\u2581", "a", "b"]
    kinds = [gguf.TokenType.UNKNOWN, CONTROL, CONTROL, *[gguf.TokenType.BYTE] * 256, USER_DEFINED, *[NORMAL] * 4]
    scores = [0.0] * 259 + [-1000.0, -0.0, -1.0, -2.0, -3.0]
    special = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return _vocabulary_file(path, model="llama", tokens=tokens, kinds=kinds, scores=scores, **special, **metadata)


@given(st.text() | st.text("the 0123456789 switches<|im_end|>"))
def test_rebuilt_tokenizer_equals_the_original(rebuilt: Tokenizer, text: str) -> None:
    ids = rebuilt.encode(text).ids
    assert ids == ORIGINAL.encode(text).ids
    assert rebuilt.decode(ids, skip_special_tokens=False) == text


def test_digits_are_never_joined(rebuilt: Tokenizer) -> None:
    assert len(rebuilt.encode("2048").ids) == 4


def test_config_names_the_special_tokens_and_the_template(tmp_path: Path) -> None:
    config = tokenizer_config(GGUFFile(make_tiny_gguf(tmp_path / "tiny.gguf")))
    assert config["bos_token"] == "<|im_start|>" and config["eos_token"] == "<|im_end|>"
    assert config["unk_token"] == "<|endoftext|>" and config["pad_token"] == "<|im_end|>"
    assert config["add_bos_token"] is False
    assert config["chat_template"] == CHAT_TEMPLATE
    assert config["model_max_length"] == 512


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(_vocabulary_file(tmp_path / "v.gguf"))
    added = tokenizer.get_added_tokens_decoder()
    assert {id: token.special for id, token in added.items()} == {0: True, 1: True, 5: False}
    assert tokenizer.encode("ab[tool]<|user|>a").ids == [4, 5, 1, 2]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [4]),
        ({"add_bos_token": True, "bos_token_id": 1}, [1, 4]),
        ({"add_eos_token": True, "eos_token_id": 0}, [4, 0]),
        ({"add_bos_token": True, "bos_token_id": 1, "add_eos_token": True, "eos_token_id": 0}, [1, 4, 0]),
        ({"add_bos_token": False, "bos_token_id": 1}, [4]),
    ],
)
def test_bos_and_eos_are_added_where_the_file_asks(tmp_path: Path, asked: dict[str, Any], expected: list[int]) -> None:
    tokenizer = build_tokenizer(_vocabulary_file(tmp_path / "v.gguf", **asked))
    assert tokenizer.encode("ab").ids == expected
    assert tokenizer.encode("ab", add_special_tokens=False).ids == [4]


def test_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf")
    token = "\u0120machine".encode()
    path.write_bytes(path.read_bytes().replace(token, token.replace(b"c", b"C"), 1))
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged in its vocabulary .*fetch it again"):
        build_tokenizer(GGUFFile(path))


@pytest.mark.parametrize("metadata", [{"pre": "viking"}, {"pre": "default"}, {"model": "bert"}])
def test_unknown_tokenizers_list_what_is_known(tmp_path: Path, metadata: dict[str, Any]) -> None:
    known = r"\(llama\), \(gpt2, gpt-2\), \(gpt2, llama-bpe\), .*, \(gpt2, tekken\) \(other"
    with pytest.raises(ModelError, match=rf"tokenizer \(.*\) is not supported; known: {known}"):
        build_tokenizer(_vocabulary_file(tmp_path / "v.gguf", **metadata))


@pytest.mark.parametrize(
    ("pre", "expected"), [("smollm", [4]), ("qwen2", [4]), ("llama-bpe", [1, 4]), ("tekken", [1, 4])]
)
def test_files_that_do_not_say_so_add_bos_where_their_family_does(
    tmp_path: Path, pre: str, expected: list[int]
) -> None:
    file = _vocabulary_file(tmp_path / "v.gguf", pre=pre, bos_token_id=1)
    assert build_tokenizer(file).encode("ab").ids == expected
    assert tokenizer_config(file)["add_bos_token"] is (expected[0] == 1)


def test_tokens_that_only_pad_the_head_are_no_tokens(tmp_path: Path) -> None:
    tokens, kinds = [*TOKENS, "[PAD6]"], [CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED]
    tokenizer = build_tokenizer(_vocabulary_file(tmp_path / "v.gguf", tokens=tokens, kinds=kinds))
    assert tokenizer.decode([4, 6]) == "ab" and tokenizer.id_to_token(6) is None
    assert 6 not in tokenizer.encode("a[PAD6]").ids


def test_pieces_begin_with_bos_and_a_space(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(_pieces_file(tmp_path / "v.gguf"))
    assert tokenizer.encode("ab").tokens == ["<s>", "\u2581a", "b"]
    assert tokenizer.encode("ab\u20ac", add_special_tokens=False).tokens[2:] == ["<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(tokenizer.encode("ab\u20ac").ids) == "ab\u20ac"
    assert {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special} == {
        "<unk>",
        "<s>",
        "</s>",
    }


def test_pieces_without_prefix_space_and_bos(tmp_path: Path) -> None:
    file = _pieces_file(tmp_path / "v.gguf", add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    tokenizer = build_tokenizer(file)
    assert tokenizer.encode("ab").tokens == ["a", "b", "</s>"]
    assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


def test_user_defined_pieces_are_matched_before_spaces_are_replaced(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(_pieces_file(tmp_path / "v.gguf", add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("b   a").tokens == ["b", "  ", "\u2581a"]
    assert tokenizer.decode(tokenizer.encode("b   a").ids) == "b   a"
