import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchgear.core.errors import ModelError
from switchgear.core.model.files import read_directory
from switchgear.core.testing.tiny import make_tiny_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path)


def _shard(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, directory / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_single_file_model(directory: Path) -> None:
    files = read_directory("tiny", directory, directory)
    assert files.weights == (directory / "model.safetensors",)
    assert files.tokenizer == directory / "tokenizer.json"
    assert files.config["model_type"] == "llama"
    assert files.generation_config["eos_token_id"] == 2
    assert files.tokenizer_config["eos_token"] == "<|im_end|>"


def test_shards_come_from_the_index(directory: Path) -> None:
    _shard(directory)
    names = [path.name for path in read_directory("tiny", directory, directory).weights]
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_optional_files_may_be_absent(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    (directory / "tokenizer_config.json").unlink()
    files = read_directory("tiny", directory, directory)
    assert files.generation_config == {} and files.tokenizer_config == {}


def test_template_in_a_file_of_its_own_wins(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert read_directory("tiny", directory, directory).tokenizer_config["chat_template"] == "{{ messages }}"


def _remove_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def _cut_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "lla')


def _list_config(directory: Path) -> None:
    (directory / "config.json").write_text("[]")


def _remove_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def _remove_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def _only_bin(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({}, directory / "pytorch_model.bin")


def _lose_shard(directory: Path) -> None:
    _shard(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()


def _empty_index(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove_config, "tiny has no config.json; give a Hugging Face model directory or a .gguf file"),
        (_cut_config, "tiny has a config.json that is not valid JSON"),
        (_list_config, "tiny has a config.json that holds no JSON object"),
        (_remove_tokenizer, "tiny has no tokenizer.json; save one"),
        (_remove_weights, "tiny has no model.safetensors"),
        (_only_bin, ".bin files only.*convert them to safetensors"),
        (_lose_shard, "tiny lacks model-00002-of-00002.safetensors; fetch the model again"),
        (_empty_index, "without weight_map"),
    ],
)
def test_missing_and_broken_files_are_named(directory: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(directory)
    with pytest.raises(ModelError, match=message):
        read_directory("tiny", directory, directory)
