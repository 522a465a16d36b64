"""What a request with tools leads to: nothing, a parser, a grammar that demands calls, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.gateway.openai.errors import ApiError
from switchgear.core.gateway.openai.tool_bodies import (
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    TextFormat,
    Tool,
    ToolChoice,
)
from switchgear.core.gateway.openai.tool_deltas import ContentDelta
from switchgear.core.gateway.tool_calls.prepare import ToolUse, prepare_tools
from switchgear.core.model.files import read_directory
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.model.vocabulary import read_vocabulary
from switchgear.core.sampling_params import Structure
from switchgear.plugins.structured_output import StructuredOutput, StructureMasks

from .templates import LLAMA, MISTRAL, NO_TOOLS, QWEN, QWEN_CODER

TEMPLATES = {"hermes": QWEN, "llama3_json": LLAMA, "mistral": MISTRAL}
PLACE = {"type": "object", "properties": {"zip": {"enum": [1, 2]}}, "required": ["zip"], "additionalProperties": False}


def tool(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    return Tool(type="function", function=FunctionDefinition(name=name, parameters=parameters))


WEATHER = tool(
    "weather",
    {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/place"}, "unit": {"enum": ["C", "F"]}},
        "required": ["place", "unit"],
        "additionalProperties": False,
        "$defs": {"place": PLACE},
    },
)
TIME = tool("time")
TOOLS = [WEATHER, TIME]
NAMED = NamedToolChoice(type="function", function=NamedFunction(name="weather"))
SCHEMA = JsonSchemaFormat(json_schema=JsonSchema(name="place", schema=PLACE))


def prepared(tool_choice: ToolChoice, template: str = QWEN, tools: Sequence[Tool] = TOOLS, **options: Any) -> ToolUse:
    return prepare_tools(tools, tool_choice, {"chat_template": template}, **options)


def test_none_looks_for_nothing_and_asks_nothing_of_the_template() -> None:
    assert prepared("none", NO_TOOLS) == prepared("auto", NO_TOOLS, tools=()) == ToolUse()


def test_auto_reads_calls_and_demands_none() -> None:
    use = prepared("auto")
    assert use.structure is None and use.make_parser is not None
    assert use.make_parser() is not use.make_parser()
    assert use.make_parser().push("Hello") == [ContentDelta("Hello")]


@pytest.mark.parametrize(
    ("response_format", "structure"),
    [
        (None, None),
        (TextFormat(), None),
        (JsonObjectFormat(), Structure("json_object")),
        (SCHEMA, Structure("json_schema", json.dumps(PLACE))),
        (JsonSchemaFormat(json_schema=JsonSchema(name="any")), Structure("json_object")),
    ],
)
def test_a_response_format_is_a_structure(response_format: Any, structure: Structure | None) -> None:
    assert prepared("none", response_format=response_format) == ToolUse(structure)


@pytest.mark.parametrize(
    ("template", "reason"), [(NO_TOOLS, "has no place for tools"), (QWEN_CODER, "Qwen3-Coder, which is not read here")]
)
def test_a_model_whose_calls_nobody_reads_is_refused_in_a_sentence(template: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        prepared("auto", template)
    assert (refused.value.status, refused.value.param) == (400, "tools")
    assert reason in refused.value.message and "leave them out or use another model" in refused.value.message


# -- demanded calls -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masks(tiny_model: Path) -> StructureMasks:
    vocabulary = read_vocabulary(Tokenizer(read_directory("tiny", tiny_model, tiny_model)), 512)
    return StructureMasks(StructuredOutput.Config(), vocabulary, [2], clock=lambda: 0.0)


def accepts(masks: StructureMasks, structure: Structure | None, text: str) -> bool:
    """Whether a text, byte by byte, is a whole output of the structure."""
    assert structure is not None
    single = {token: id for id, token in enumerate(masks_tokens(masks)) if len(token) == 1}
    masks.begin(0, structure)
    matcher = masks.held[0].matcher
    ids = [single[bytes([byte])] for byte in text.encode()]
    is_whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    masks.held.clear()
    return is_whole


def masks_tokens(masks: StructureMasks) -> list[bytes]:
    return [masks.tokenizer.decode_bytes([id]) for id in range(masks.vocab_size)]


ONE = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"place": {"zip": 1}, "unit": "C"}}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"place": {"zip": 1}, "unit": "C"}}',
    "mistral": '[{"name": "weather", "arguments": {"place": {"zip": 1}, "unit": "C"}}]',
}
TWO = {
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
    "llama3_json": ONE["llama3_json"] + '; {"name": "time", "parameters": {}}',
    "mistral": ONE["mistral"][:-1] + ', {"name": "time", "arguments": {}}]',
}


@pytest.mark.parametrize("form", TEMPLATES)
def test_what_is_demanded_is_calls_as_the_template_writes_them(masks: StructureMasks, form: str) -> None:
    template = TEMPLATES[form]
    any_call, one_call = prepared("required", template), prepared("required", template, parallel=False)
    named = prepared(NAMED, template)
    assert [accepts(masks, use.structure, ONE[form]) for use in (any_call, one_call, named)] == [True, True, True]
    assert [accepts(masks, use.structure, TWO[form]) for use in (any_call, one_call, named)] == [True, False, False]
    time = ONE[form].replace("weather", "time").replace('{"place": {"zip": 1}, "unit": "C"}', "{}")
    assert [accepts(masks, use.structure, time) for use in (any_call, one_call, named)] == [True, True, False]
    for wrong in (
        "Hello",
        ONE[form].replace('"C"', '"K"'),
        ONE[form].replace("weather", "rain"),
        ONE[form] + " so",
        "",
    ):
        assert not accepts(masks, any_call.structure, wrong)


@pytest.mark.parametrize("form", TEMPLATES)
def test_with_a_response_format_an_answer_is_either(masks: StructureMasks, form: str) -> None:
    use = prepared("auto", TEMPLATES[form], response_format=SCHEMA)
    assert accepts(masks, use.structure, ONE[form]) and accepts(masks, use.structure, '{"zip": 2}')
    assert not accepts(masks, use.structure, "Hello") and not accepts(masks, use.structure, '{"zip": 3}')
    assert use.make_parser is not None
    parser = use.make_parser()
    deltas = [*parser.push('{"zip": 2}'), *parser.finish()]
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)) == '{"zip": 2}'


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    plugins: dict[str, dict[str, Any]] = {"structured_output": {}}
    with LLM(str(tiny_model), dtype="float64", plugins=plugins, max_model_len=400) as llm:
        yield llm


@pytest.mark.parametrize("form", TEMPLATES)
def test_a_model_that_has_never_seen_a_tool_calls_one_when_it_must(llm: LLM, form: str) -> None:
    use = prepared("required", TEMPLATES[form])
    assert use.make_parser is not None
    for seed in range(4):
        [result] = llm.generate("Hello", SamplingParams(max_tokens=300, seed=seed, structure=use.structure))
        parser = use.make_parser()
        deltas = [*parser.push(result.text), *parser.finish()]
        assert deltas and not any(isinstance(delta, ContentDelta) for delta in deltas)
        calls: dict[int, tuple[str, str]] = {}
        for delta in deltas:
            assert not isinstance(delta, ContentDelta)
            name, arguments = calls.get(delta.index, ("", ""))
            calls[delta.index] = (name + delta.name, arguments + delta.arguments)
        complete = list(calls.values())[: None if result.finish_reason == "stop" else -1]
        for name, arguments in complete:
            value = json.loads(arguments)
            assert value == {} if name == "time" else (value["place"]["zip"] in (1, 2) and value["unit"] in ("C", "F"))
