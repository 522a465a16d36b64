"""A model of 260,000 parameters whose greedy story is known word for word."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams

STORY = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, \
red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play with \
your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she"""


def test_two_hundred_greedy_tokens(shared_data: Path) -> None:
    folder = shared_data / "tiny_model" / "stories260k"
    if not folder.is_dir():
        pytest.skip("the tiny model is not beside this checkout")
    with LLM(str(folder), dtype="float32", plugins={}) as llm:
        [result] = llm.generate([[1]], SamplingParams(max_tokens=200, temperature=0))
    assert result.text == STORY
