"""The catalogue's first model, for real; skipped until `switchgear pull smollm2-135m` has fetched it."""

import csv
import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from switchgear.core.model.cache import cache_folder
from switchgear.core.model.catalogue import CATALOGUE
from switchgear.core.model.chat import render
from switchgear.core.model.detokenizer import Detokenizer
from switchgear.core.model.files import ModelFiles
from switchgear.core.model.pull_wheel import is_fetched
from switchgear.core.model.store import resolve
from switchgear.core.model.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

ENTRY = CATALOGUE["smollm2-135m"]
DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
PARTS = {
    "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
    "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
    "self_attn.o_proj": ("attn_output",),
    "mlp.down_proj": ("ffn_down",),
    "input_layernorm": ("attn_norm",),
    "post_attention_layernorm": ("ffn_norm",),
}


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    if not is_fetched(ENTRY, cache_folder()):
        pytest.skip("smollm2-135m has not been pulled")
    return resolve("smollm2-135m", "float32")


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return Tokenizer(files)


def _texts() -> Iterator[str]:
    """Real texts of many kinds: questions, answers, code, intents, encyclopedia lines."""
    for file in sorted((DATA / "prompts").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            yield from (value for value in json.loads(line).values() if isinstance(value, str))
    with gzip.open(DATA / "prompts" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as code:
        yield from (json.loads(line)["prompt"] for line in code)
    with (DATA / "semantic_cache" / "banking77_test.csv").open(encoding="utf-8", newline="") as table:
        yield from (row[0] for row in csv.reader(table))
    yield from (DATA / "text" / "wikitext2_raw_test.txt").read_text(encoding="utf-8").splitlines(keepends=True)


def test_file_is_the_one_that_was_checked(files: ModelFiles) -> None:
    with files.source.open("rb") as source:
        assert hashlib.file_digest(source, "sha256").hexdigest() == ENTRY.sha256


def test_every_weight_equals_the_whole_dequantised_tensor(files: ModelFiles) -> None:
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(files.source).tensors}
    names = {"model.embed_tokens.weight": ["token_embd.weight"], "model.norm.weight": ["output_norm.weight"]}
    for layer in range(30):
        for ours, parts in PARTS.items():
            names[f"model.layers.{layer}.{ours}.weight"] = [f"blk.{layer}.{part}.weight" for part in parts]
    assert sorted(part for parts in names.values() for part in parts) == sorted(stored)
    with safe_open(files.weights[0], framework="pt") as converted:
        assert sorted(converted.keys()) == sorted(names)
        for name, pieces in names.items():
            whole = torch.cat([_dequantised(stored[part]) for part in pieces])
            assert (converted.get_tensor(name) - whole).abs().max() == 0.0, name


def _dequantised(tensor: gguf.ReaderTensor) -> torch.Tensor:
    values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type))
    num_heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
    if num_heads is not None:
        pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, values.shape[1])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(values)


CONVERT = """
import sys, threading
from pathlib import Path
from switchgear.core.model.gguf_convert import convert_gguf


def anonymous_bytes():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def watch():
    while not is_done.wait(0.005):
        sizes.append(anonymous_bytes())


is_done, sizes = threading.Event(), [anonymous_bytes()]
watcher = threading.Thread(target=watch)
watcher.start()
convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]), "float32", progress=False)
is_done.set()
watcher.join()
print(max(sizes) - sizes[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_conversion_takes_far_less_memory_than_the_weights(files: ModelFiles, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONVERT, str(files.source), str(tmp_path)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (tmp_path / "model.safetensors").read_bytes() == files.weights[0].read_bytes()
    assert grown < files.weights[0].stat().st_size / 8, "the vocabulary and a few blocks of rows"


def test_config_is_the_published_one(files: ModelFiles) -> None:
    expected = {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
    }
    assert {key: files.config[key] for key in expected} == expected


def test_special_tokens_are_the_published_ones(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert tokenizer.bos_id == 1 and tokenizer.eos_ids == {2}
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.is_byte_level


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not beside the checkout")
def test_real_texts_round_trip(tokenizer: Tokenizer) -> None:
    num_texts = 0
    for text in _texts():
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
        num_texts += 1
    assert num_texts > 7000


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not beside the checkout")
def test_wikitext_has_the_published_number_of_tokens(tokenizer: Tokenizer) -> None:
    text = (DATA / "text" / "wikitext2_raw_test.txt").read_text(encoding="utf-8")
    assert len(tokenizer.encode(text)) == 304_978


@given(ids=st.lists(st.integers(0, 49151), max_size=24), skip_special=st.booleans())
def test_pushed_text_equals_decoding_at_once(tokenizer: Tokenizer, ids: list[int], skip_special: bool) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special)
    pushed = "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush()
    assert pushed == tokenizer.decode(ids, skip_special)


def test_chat_template_renders_what_transformers_renders(files: ModelFiles) -> None:
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(files.tokenizer), chat_template=files.tokenizer_config["chat_template"]
    )
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of <Spain> & Portugal?"},
    ]
    for chat in (messages, [{"role": "system", "content": "Be brief."}, *messages]):
        expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert render(chat, files.tokenizer_config) == expected
