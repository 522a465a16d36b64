import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from switchgear.core.errors import ModelError, RequestError
from switchgear.core.model.files import read_directory
from switchgear.core.model.tokenizer import BYTE_OF_CHARACTER, Tokenizer
from switchgear.core.testing.tiny import make_tiny_model
from tokenizers import decoders, pre_tokenizers


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer(read_directory("tiny", directory, directory))


def _changed(directory: Path, tmp_path: Path, **contents: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a copy of the model with other JSON files, `name=content` for name.json."""
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return Tokenizer(read_directory("changed", tmp_path, tmp_path))


def test_byte_table_is_the_one_of_the_library() -> None:
    assert sorted(BYTE_OF_CHARACTER) == sorted(pre_tokenizers.ByteLevel.alphabet())
    decoder = decoders.ByteLevel()
    assert all(decoder.decode([character]) == chr(byte) for character, byte in BYTE_OF_CHARACTER.items() if byte < 128)


def test_text_round_trips_and_special_tokens_are_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("switch 2048 \u20ac<|im_end|>")
    assert tokenizer.decode(ids) == "switch 2048 \u20ac"
    assert tokenizer.decode(ids, skip_special=False) == "switch 2048 \u20ac<|im_end|>"


def test_special_ids_come_from_the_config_files(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == {2}
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == 512


def test_eos_ids_join_the_list_of_generation_config_and_the_tokenizers_own(directory: Path, tmp_path: Path) -> None:
    changed = _changed(directory, tmp_path, generation_config={"eos_token_id": [0, 7]})
    assert changed.eos_ids == {0, 7, 2}


def test_eos_falls_back_to_config_and_tokens_may_be_objects(directory: Path, tmp_path: Path) -> None:
    changed = _changed(
        directory,
        tmp_path,
        generation_config={},
        config={"eos_token_id": 5},
        tokenizer_config={"bos_token": {"content": "<|im_start|>"}, "eos_token": None},
    )
    assert changed.eos_ids == {5}
    assert changed.bos_id == 1


def test_a_model_without_special_tokens_has_none(directory: Path, tmp_path: Path) -> None:
    changed = _changed(directory, tmp_path, generation_config={}, config={}, tokenizer_config={})
    assert changed.eos_ids == frozenset() and changed.bos_id is None


def test_post_processor_adds_bos_only_when_special_tokens_are_wanted(directory: Path, tmp_path: Path) -> None:
    raw = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single=["<|im_start|>", "$A"], special_tokens=[("<|im_start|>", 1)]
    )
    changed = _changed(directory, tmp_path, tokenizer=json.loads(raw.to_str()))
    assert changed.encode("a")[0] == 1
    assert changed.encode("a", add_special=False)[0] != 1


def test_truncation_stored_in_the_file_is_not_obeyed(directory: Path, tmp_path: Path) -> None:
    raw = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.enable_truncation(2)
    raw.enable_padding(length=64)
    changed = _changed(directory, tmp_path, tokenizer=json.loads(raw.to_str()))
    assert changed.decode(changed.encode("z y x w"), skip_special=False) == "z y x w"


def test_ids_that_only_pad_the_head_decode_to_nothing(directory: Path, tmp_path: Path) -> None:
    config = {**json.loads((directory / "config.json").read_text()), "vocab_size": 600}
    changed = _changed(directory, tmp_path, config=config)
    assert changed.vocab_size == 600
    assert changed.decode([*changed.encode("a"), 599]) == "a"


@pytest.mark.parametrize("id", [-1, 512, 2**40])
def test_ids_out_of_range_are_refused(tokenizer: Tokenizer, id: int) -> None:
    with pytest.raises(RequestError, match=f"token id {id} is out of range; this model's ids go from 0 to 511"):
        tokenizer.decode([5, id])


def test_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 2; send valid Unicode"):
        tokenizer.encode("ab\ud800c")


def test_broken_tokenizer_file_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a readable tokenizer"):
        _changed(directory, tmp_path, tokenizer={"model": 7})
