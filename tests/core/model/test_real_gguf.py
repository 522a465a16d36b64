"""Real GGUF files against transformers: the catalogue's Gemma 3 once it is pulled, and files that a variable names.

SWITCHGEAR_TEST_GGUF: paths of .gguf files, joined as in PATH.
"""

import csv
import gzip
import json
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
import transformers
from switchgear import LLM, SamplingParams
from switchgear.core.model.cache import cache_folder
from switchgear.core.model.catalogue import CATALOGUE
from switchgear.core.model.files import ModelFiles
from switchgear.core.model.pull_wheel import is_fetched
from switchgear.core.model.store import resolve
from switchgear.core.model.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
GEMMA = CATALOGUE["gemma3-270m"]
NAMED = [Path(path) for path in os.environ.get("SWITCHGEAR_TEST_GGUF", "").split(os.pathsep) if path]
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not beside the checkout")


@pytest.fixture(scope="module", params=[GEMMA.name, *map(str, NAMED)])
def files(request: pytest.FixtureRequest) -> ModelFiles:
    if request.param == GEMMA.name and not is_fetched(GEMMA, cache_folder()):
        pytest.skip("gemma3-270m has not been pulled")
    return resolve(request.param, "float32")


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return Tokenizer(files)


@pytest.fixture(scope="module")
def theirs(files: ModelFiles) -> transformers.PreTrainedModel:
    folder, name = files.source.parent, files.source.name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return cast(transformers.PreTrainedModel, model.eval())


def _texts() -> list[str]:
    """Real texts of many kinds, without those that transformers reads in another way than the original tokenizers.

    It does not normalise for Qwen, and cuts more than 31 spaces otherwise than SentencePiece does for Gemma.
    """
    return [text for text in _all_texts() if unicodedata.is_normalized("NFC", text) and " " * 32 not in text]


def _all_texts() -> Iterator[str]:
    for file in sorted((DATA / "prompts").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            yield from (value for value in json.loads(line).values() if isinstance(value, str))
    with gzip.open(DATA / "prompts" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as code:
        yield from (json.loads(line)["prompt"] for line in code)
    with (DATA / "semantic_cache" / "banking77_test.csv").open(encoding="utf-8", newline="") as table:
        yield from (row[0] for row in csv.reader(table))
    yield from (DATA / "text" / "wikitext2_raw_test.txt").read_text(encoding="utf-8").splitlines(keepends=True)


@needs_data
def test_tokens_equal_those_of_transformers_and_texts_come_back(files: ModelFiles, tokenizer: Tokenizer) -> None:
    expected = transformers.AutoTokenizer.from_pretrained(files.source.parent, gguf_file=files.source.name)
    texts = _texts()
    assert len(texts) > 7000
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == expected(text)["input_ids"], text
        assert tokenizer.decode(ids) == text


def test_logits_are_those_of_transformers(files: ModelFiles, theirs: transformers.PreTrainedModel) -> None:
    """Through our own decoder: log-probabilities of a prompt longer than Gemma's window."""
    prompt = torch.randint(1000, 50_000, (640,), generator=torch.Generator().manual_seed(0))
    with LLM(str(files.source), dtype="float32", plugins={}) as llm:
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        (result,) = llm.generate([prompt.tolist()], params)
    with torch.no_grad():
        scored = theirs(prompt[None]).logits[0].log_softmax(-1)
    expected = scored[:-1].gather(1, prompt[1:, None])[:, 0]
    assert result.prompt_logprobs is not None
    found = torch.tensor([position.chosen.logprob for position in result.prompt_logprobs[1:] if position])
    assert (found - expected).abs().max() < 1e-3
