"""LangChain, which is built on the `openai` SDK and asks for more than it, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_openai.chat_models.base import OpenAIInvalidRequestError
from pydantic import BaseModel, ConfigDict, SecretStr
from switchgear.core.testing.tiny import make_tiny_model

from .served import Served, serving

TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }} "
    'Write <tool_call>{"name": "...", "arguments": {}}</tool_call>.{% endif %}'
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}<assistant>"
)


class Mood(BaseModel):
    """How somebody feels. Nothing else is said, which a random model would never stop to do."""

    model_config = ConfigDict(extra="forbid")
    mood: Literal["good", "bad"]
    degree: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = make_tiny_model(tmp_path_factory.mktemp("tools"))
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": TEMPLATE}))
    with serving(model, "--served-model-name", "tiny", "--on", "structured_output") as served:
        yield served


def chat(served: Served, **options: Any) -> ChatOpenAI:
    options = {"max_completion_tokens": 8, "temperature": 0, "max_retries": 0, **options}
    return ChatOpenAI(base_url=f"{served.url}/v1", api_key=SecretStr("none"), model="tiny", **options)


def test_an_answer_comes_with_its_counts_and_its_end(served: Served) -> None:
    answer = chat(served).invoke("Hello")
    assert isinstance(answer.content, str) and answer.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 8
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == "tiny"


def test_a_stream_adds_up_to_the_answer_and_counts_only_when_asked(served: Served) -> None:
    whole = chat(served).invoke("Hello")

    def streamed(**options: Any) -> AIMessageChunk:
        first, *rest = chat(served, **options).stream("Hello")
        for chunk in rest:
            first += chunk
        return first

    counted, plain = streamed(stream_usage=True), streamed(stream_usage=False)
    assert counted.content == plain.content == whole.content
    assert whole.usage_metadata is not None and counted.usage_metadata is not None
    assert counted.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert plain.usage_metadata is None


def test_a_batch_comes_back_in_order(served: Served) -> None:
    questions: list[Any] = ["One", "Two, which is longer", "Three"]
    model = chat(served)
    assert [answer.content for answer in model.batch(questions)] == [model.invoke(one).content for one in questions]


def test_log_probabilities_and_stop_strings_arrive(served: Served) -> None:
    answer = chat(served, logprobs=True, top_logprobs=2).invoke("Hello")
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == 8 and all(len(entry["top_logprobs"]) == 2 for entry in entries)
    text = str(answer.content)
    assert chat(served).invoke("Hello", stop=[text[3:6]]).content == text[: text.index(text[3:6])]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_fits_its_type(served: Served, method: Literal["json_schema", "function_calling"]) -> None:
    model = chat(served, max_completion_tokens=128).with_structured_output(Mood, method=method)
    assert isinstance(model.invoke("How are you?"), Mood)


def test_a_tool_that_must_be_called_is(served: Served) -> None:
    answer = chat(served, max_completion_tokens=128).bind_tools([Mood], tool_choice="Mood").invoke("How are you?")
    (call,) = answer.tool_calls
    assert call["name"] == "Mood" and Mood(**call["args"])


def test_vectors_come_for_texts(served: Served) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{served.url}/v1",
        api_key=SecretStr("none"),
        model="tiny",
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    one, two = embeddings.embed_documents(["one", "two"])
    assert len(one) == len(two) == 64 and one != two
    assert embeddings.embed_query("one") == pytest.approx(one, abs=1e-5)


def test_what_is_refused_is_the_sdks_error(served: Served) -> None:
    with pytest.raises(OpenAIInvalidRequestError, match="max_model_len"):
        chat(served, max_completion_tokens=100_000).invoke("Hello")
