from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.model.gguf_tokenizer import build_tokenizer, tokenizer_config
from switchgear.core.testing.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from switchgear.core.testing.tiny_gguf import make_tiny_gguf
from tokenizers import Tokenizer

ORIGINAL = make_tiny_tokenizer()
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
    writer.add_token_list(TOKENS)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL, kinds.CONTROL, kinds.NORMAL, kinds.NORMAL, kinds.NORMAL, kinds.USER_DEFINED])
    writer.add_token_merges(["a b"])
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


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


@pytest.mark.parametrize("metadata", [{"pre": "tekken"}, {"model": "llama"}])
def test_unknown_tokenizers_list_what_is_known(tmp_path: Path, metadata: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"tokenizer \(.*\) is not supported; known: \(gpt2, smollm\)"):
        build_tokenizer(_vocabulary_file(tmp_path / "v.gguf", **metadata))
