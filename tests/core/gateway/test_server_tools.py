"""Tools and response formats through the `openai` SDK: a model of random weights is held to them all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from switchgear.core.testing.tiny import make_tiny_model

from .served import Served, serving

TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }} "
    'Write <tool_call>{"name": "...", "arguments": {}}</tool_call>.{% endif %}'
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}<assistant>"
)
QUESTION: Any = [{"role": "user", "content": "Weather in Oslo?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {
                "type": "object",
                "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["unit", "days"],
                "additionalProperties": False,
            },
        },
    }
]


class Mood(BaseModel):
    mood: Literal["good", "bad"]
    degree: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model(tmp_path_factory.mktemp("tools"))
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": TEMPLATE}))
    return model


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    with serving(model, "--served-model-name", "tiny", "--on", "structured_output") as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_demanded_comes_and_fits_its_schema(client: OpenAI, tool_choice: Any) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": tool_choice,
        "parallel_tool_calls": False,
        "max_tokens": 150,
        "seed": 4,
    }
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.finish_reason == "tool_calls" and not whole.message.content
    assert whole.message.tool_calls is not None
    [call] = whole.message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["unit"] in ("C", "F") and 1 <= arguments["days"] <= 9

    with client.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls is not None
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_tools_that_may_be_used_need_no_structure(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=QUESTION, tools=TOOLS, max_tokens=12, seed=1)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_a_parsed_answer_fits_its_type(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=QUESTION, response_format=Mood, max_tokens=200, seed=2, n=2
    )
    assert [choice.message.parsed for choice in answer.choices if choice.message.parsed] != []
    for choice in answer.choices:
        assert isinstance(choice.message.parsed, Mood)


def test_what_is_cut_off_is_said_to_be(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="tiny", messages=QUESTION, response_format=Mood, max_tokens=3)


def test_a_schema_that_cannot_be_kept_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(
            model="tiny",
            messages=QUESTION,
            max_tokens=5,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}},
        )


def test_without_the_plugin_a_format_is_a_bad_request_that_names_it(model: Path) -> None:
    with (
        serving(model, "--served-model-name", "tiny") as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="structured_output"),
    ):
        client.chat.completions.create(
            model="tiny", messages=QUESTION, max_tokens=5, response_format={"type": "json_object"}
        )
