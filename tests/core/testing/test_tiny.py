from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from switchgear.core.model.files import read_directory
from switchgear.core.testing.tiny import FAMILIES, make_tiny_model, make_tiny_tokenizer


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    first, second = make_tiny_model(tmp_path / "first", seed=3), make_tiny_model(tmp_path / "second", seed=3)
    names = sorted(file.name for file in first.iterdir())
    assert names == sorted(file.name for file in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, second = make_tiny_model(tmp_path / "first", seed=0), make_tiny_model(tmp_path / "second", seed=1)
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 1}, {"attention_bias": True, "mlp_bias": True}],
    ids=["untied", "tied", "one_kv_head", "biases"],
)
def test_greedy_text_of_transformers_is_not_constant(tmp_path: Path, overrides: dict[str, Any]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, **overrides))
    generated = model.generate(
        torch.tensor([[72, 101, 108]]), do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0
    )
    assert len(set(generated[0, 3:].tolist())) > 8


def test_transformers_finds_every_weight(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, attention_bias=True, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ours = load_file(directory / "model.safetensors")
    theirs = model.state_dict()
    assert set(theirs) - set(ours) == {"lm_head.weight"}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_what_transformers_knows_and_says_something(family: str, tmp_path: Path) -> None:
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        make_tiny_model(tmp_path, family=family), output_loading_info=True
    )
    model, info = loaded
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    generated = model.generate(
        torch.tensor([[72, 101, 108]]), do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0
    )
    assert len(set(generated[0, 3:].tolist())) > 8


def test_dtype_override_is_the_dtype_on_disk(tmp_path: Path) -> None:
    weights = load_file(make_tiny_model(tmp_path, dtype="bfloat16") / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_vocabulary_is_full_and_special_ids_are_fixed(tmp_path: Path) -> None:
    files = read_directory("tiny", tmp_path, make_tiny_model(tmp_path))
    tokenizer = make_tiny_tokenizer()
    assert tokenizer.get_vocab_size() == files.config["vocab_size"]
    assert tokenizer.token_to_id("<|im_start|>") == files.config["bos_token_id"]
    assert tokenizer.token_to_id("<|im_end|>") == files.config["eos_token_id"]


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    tokenizer = make_tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
