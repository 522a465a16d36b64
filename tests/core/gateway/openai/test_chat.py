"""What a chat body asks for."""

from __future__ import annotations

from typing import Any

import pytest
from switchgear.core.gateway.openai.chat import ChatCall, parse_chat
from switchgear.core.gateway.openai.errors import ApiError
from switchgear.core.gateway.openai.tool_bodies import JsonObjectFormat, JsonSchemaFormat, NamedToolChoice, TextFormat
from switchgear.core.gateway.openai.wire import Wire
from switchgear.core.sampling_params import SamplingParams

from .made import WIRE, chat_body

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
ADD = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def parse(**fields: Any) -> ChatCall:
    return parse_chat(chat_body(**fields), WIRE)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    return caught.value


def test_a_plain_body_asks_with_the_defaults_of_openai() -> None:
    call = parse()
    assert call.ask.messages == ({"role": "user", "content": "hi"},)
    assert call.ask.template == {"add_generation_prompt": True}
    assert not call.ask.add_special
    assert (call.stream, call.include_usage, call.priority, call.deadline_seconds) == (False, False, 0, None)
    assert call.ask.params == SamplingParams(max_tokens=WIRE.max_model_len)
    assert call.ask.default_max_tokens


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 1.5,
        "presence_penalty": -1.5,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "seed": -3,
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "prompt_logprobs": 1,
    }
    call = parse(**fields, max_tokens=9, logit_bias={"3": -1}, logprobs=True, top_logprobs=2, priority=-1, deadline=1.5)
    expected = SamplingParams(**{**fields, "max_tokens": 9, "logit_bias": {3: -1.0}, "logprobs": 2})
    assert call.ask.params == expected
    assert (call.priority, call.deadline_seconds) == (-1, 1.5)


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    names = parse_chat.__globals__["ChatRequest"].__struct_fields__
    absent = {name: None for name in names if name not in ("model", "messages")}
    assert parse(**absent) == parse()


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5),
    ],
)
def test_the_newer_name_of_max_tokens_wins(given: dict[str, int | None], most: int) -> None:
    ask = parse(**given).ask
    assert (ask.params.max_tokens, ask.default_max_tokens) == (most, False)


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"role": "system", "content": "be brief"}, {"role": "system", "content": "be brief"}),
        ({"role": "developer", "content": "be brief"}, {"role": "system", "content": "be brief"}),
        ({"role": "user", "content": "hi", "name": "ann"}, {"role": "user", "content": "hi", "name": "ann"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        ),
        (
            {"role": "function", "name": "add", "content": "3"},
            {"role": "tool", "name": "add", "content": "3"},
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": "so", "reasoning_content": "hm"},
            {"role": "assistant", "content": "so", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
                ],
            },
        ),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "not JSON"}},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "not JSON"}}],
            },
        ),
    ],
)
def test_each_kind_of_message_in_the_form_that_templates_read(message: dict[str, Any], plain: dict[str, Any]) -> None:
    assert parse(messages=[message]).ask.messages == (plain,)


def test_arguments_nested_too_deeply_stay_text() -> None:
    arguments = '{"a":' * 10_000 + "1" + "}" * 10_000
    message = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": arguments}}]}
    (plain,) = parse(messages=[message]).ask.messages
    assert plain["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "length >= 1"),
        ("hi", "messages", "`array`"),
        ([3], "messages[0]", "`object`"),
        ([{"content": "hi"}], "messages[0].role", "missing"),
        ([{"role": "wizard", "content": "hi"}], "messages[0].role", "'wizard'"),
        ([{"role": "user"}], "messages[0].content", "missing"),
        ([{"role": "user", "content": None}], "messages[0].content", "`str | array`"),
        ([{"role": "tool", "content": "3"}], "messages[0].tool_call_id", "missing"),
        (
            [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "image_url"}]}],
            "messages[1].content[0].type",
            "'image_url'; this model reads text only",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type", "'input_audio'"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "missing"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "missing"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add"}}]}],
            "messages[0].tool_calls[0].function.arguments",
            "missing",
        ),
    ],
)
def test_a_wrong_message_is_named(messages: Any, param: str, words: str) -> None:
    error = refusal(messages=messages)
    assert (error.status, error.param) == (400, param)
    assert words in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x" * 4000, "y" * 4000]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"logit_bias": {"cat": 1}}, "logit_bias"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"deadline": 0}, "deadline"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": ADD}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param, error.type) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    "fields",
    [{"functions": []}, {"function_call": "auto"}, {"audio": {"voice": "x"}}, {"web_search_options": {}}],
)
def test_what_the_server_cannot_do_is_refused_by_name(fields: dict[str, Any]) -> None:
    error = refusal(**fields)
    assert (error.status, error.param, error.code) == (400, *fields, "unsupported_parameter")
    assert "not supported" in error.message


def test_what_changes_nothing_is_taken() -> None:
    assert (
        parse(
            user="u", safety_identifier="s", service_tier="auto", store=True, metadata={"a": "b"}, prompt_cache_key="k"
        )
        == parse()
    )


def test_a_model_without_a_template_says_so() -> None:
    wire = Wire(model_names=("tiny",), max_model_len=9, vocab_size=9, has_chat_template=False)
    with pytest.raises(ApiError, match="no chat template; use /v1/completions") as caught:
        parse_chat(chat_body(), wire)
    assert caught.value.status == 400


def test_stream_options() -> None:
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    assert not parse(stream=True, stream_options={}).include_usage
    assert parse(stream=True).stream


def test_logprobs_without_alternatives() -> None:
    assert parse(logprobs=True).ask.params.logprobs == 0
    assert parse(logprobs=False).ask.params.logprobs is None


def test_response_formats_are_parsed() -> None:
    assert isinstance(parse(response_format={"type": "text"}).response_format, TextFormat)
    assert isinstance(parse(response_format={"type": "json_object"}).response_format, JsonObjectFormat)
    schema = {"name": "point", "schema": {"type": "object"}, "strict": True}
    given = parse(response_format={"type": "json_schema", "json_schema": schema}).response_format
    assert isinstance(given, JsonSchemaFormat)
    assert (given.json_schema.name, given.json_schema.schema, given.json_schema.strict) == (
        "point",
        {"type": "object"},
        True,
    )


def test_tools_reach_the_template_unless_none_may_be_called() -> None:
    call = parse(tools=[TOOL], parallel_tool_calls=False)
    assert (call.tool_choice, call.parallel_tool_calls, call.tools[0].function.name) == ("auto", False, "add")
    (tool,) = call.ask.template["tools"]
    assert tool["function"] == {"description": "", **TOOL["function"]}  # type: ignore[dict-item]
    silent = parse(tools=[TOOL], tool_choice="none")
    assert (silent.tool_choice, "tools" in silent.ask.template) == ("none", False)


def test_a_tool_may_be_named() -> None:
    choice = parse(tools=[TOOL], tool_choice=ADD).tool_choice
    assert isinstance(choice, NamedToolChoice)
    assert choice.function.name == "add"


def test_a_choice_among_no_tools_is_none() -> None:
    assert parse(tools=[], tool_choice="auto").tool_choice == "none"
    assert parse(tool_choice="none").tool_choice == "none"


def test_template_variables_and_the_last_message_to_go_on_with() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    call = parse(messages=messages, continue_final_message=True, chat_template_kwargs={"enable_thinking": False})
    assert call.ask.template == {"enable_thinking": False, "add_generation_prompt": False, "continue_final": True}
    assert parse(messages=messages, add_generation_prompt=False).ask.template == {"add_generation_prompt": False}
    error = refusal(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"
