"""A model whose tokenizer puts a token before every text, and empty records of what stages did."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from switchgear.core.testing.tiny import SPECIAL_TOKENS, make_tiny_model
from tokenizers import processors

from .stages import journal, outcomes, requests

BOS = 1


@pytest.fixture(autouse=True)
def nothing_happened_yet() -> None:
    """Each test has the stages' records to itself."""
    for record in (journal, outcomes, requests):
        record.clear()


@pytest.fixture(scope="session")
def model_with_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with token 1 before each text but not before a chat template's."""
    model = make_tiny_model(tmp_path_factory.mktemp("with_bos"))
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    start = SPECIAL_TOKENS[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A", special_tokens=[(start, BOS)])
    tokenizer.save(str(model / "tokenizer.json"))
    return model
