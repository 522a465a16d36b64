"""Prompts and conversations become token ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from switchgear.core.errors import RequestError
from switchgear.core.gateway.prompts import Prompts
from switchgear.core.model.store import resolve
from switchgear.core.model.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def prompts(tiny_model: Path) -> Prompts:
    files = resolve(str(tiny_model), "float32")
    return Prompts(replace(files, tokenizer_config={"chat_template": TEMPLATE}), Tokenizer(files))


def test_a_conversation_goes_through_the_template(prompts: Prompts) -> None:
    ids, text = prompts.encode_chat([{"role": "user", "content": "Say it."}])
    assert text == "<user>Say it.</><assistant>"
    assert prompts.tokenizer.decode(ids.tolist(), skip_special=False) == text


@pytest.mark.parametrize("content", ["It is ", "It is", [{"type": "text", "text": "It is"}]])
def test_the_last_message_can_be_left_open(prompts: Prompts, content: object) -> None:
    messages = [{"role": "user", "content": "It is?"}, {"role": "assistant", "content": content}]
    _, text = prompts.encode_chat(messages, add_generation_prompt=False, continue_final=True)
    assert text == f"<user>It is?</><assistant>{'It is ' if content == 'It is ' else 'It is'}"


def test_a_message_that_the_template_hides_cannot_be_left_open(prompts: Prompts) -> None:
    with pytest.raises(RequestError, match="cannot be continued"):
        prompts.encode_chat([{"role": "assistant", "content": ""}], add_generation_prompt=False, continue_final=True)


@pytest.mark.parametrize("prompt", [["a"], [True], [2**70]])
def test_a_list_of_something_else_is_refused(prompts: Prompts, prompt: list[int]) -> None:
    with pytest.raises(RequestError):
        prompts.encode(prompt)
