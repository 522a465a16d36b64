"""Tool calls read from text: what is one and what is not, whole, and cut into pieces anywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchgear.core.gateway.openai.tool_deltas import ContentDelta, ToolCallDelta
from switchgear.core.gateway.tool_calls.formats import HERMES, LLAMA3_JSON, MISTRAL, Format
from switchgear.core.gateway.tool_calls.parser import CallParser

NAMES = ("weather", "time")
PARIS = '{"city": "Paris", "days": [1, {"x": "}"}]}'


@dataclass
class Read:
    """What a client puts together from the deltas."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments."""
    ids: list[str] = field(default_factory=list)

    def take(self, deltas: Iterable[ContentDelta | ToolCallDelta]) -> None:
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                assert delta.text, "an empty delta says nothing"
                self.content += delta.text
            elif delta.index == len(self.calls):
                assert delta.id and delta.name
                self.ids.append(delta.id)
                self.calls.append((delta.name, delta.arguments))
            else:
                assert delta.index == len(self.calls) - 1 and not delta.id and not delta.name and delta.arguments
                self.calls[-1] = (self.calls[-1][0], self.calls[-1][1] + delta.arguments)


def read(format: Format, pieces: Iterable[str]) -> Read:
    numbers = itertools.count()
    parser, result = CallParser(format, NAMES, lambda: f"id{next(numbers)}"), Read()
    for piece in pieces:
        result.take(parser.push(piece))
    result.take(parser.finish())
    return result


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


WEATHER = f'{{"name": "weather", "arguments": {PARIS}}}'
TIME = '{"arguments": {}, "name": "time"}'
LLAMA_WEATHER = WEATHER.replace("arguments", "parameters")

# format, text, content, calls
CASES: list[tuple[Format, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Just <b>text</b>.\n", "Just <b>text</b>.\n", []),
    (HERMES, hermes(WEATHER), "", [("weather", PARIS)]),
    (HERMES, "I look.\n\n" + hermes(WEATHER, TIME), "I look.\n\n", [("weather", PARIS), ("time", "{}")]),
    (HERMES, "\n" + hermes(WEATHER) + "\n\nDone.", "\n\nDone.", [("weather", PARIS)]),
    (HERMES, f"<tool_call>[{WEATHER}, {TIME}]</tool_call>", "", [("weather", PARIS), ("time", "{}")]),
    (HERMES, hermes('{"name": "nobody_offered_it"}'), "", [("nobody_offered_it", "{}")]),
    (HERMES, hermes('{"id": 7, "name": "time", "more": [{}], "arguments": {}}'), "", [("time", "{}")]),
    # the end of an argument is not the end of the call
    (
        HERMES,
        hermes('{"name": "time", "arguments": {"a": "</tool_call>\\""}}'),
        "",
        [("time", '{"a": "</tool_call>\\""}')],
    ),
    # spelled as the model spells it
    (
        HERMES,
        hermes('{ "name":"time" ,"arguments" : {"a":1.0,\n "b" :"\\u00e9"} }'),
        "",
        [("time", '{"a":1.0,\n "b" :"\\u00e9"}')],
    ),
    # JSON in a string, and nothing at all
    (HERMES, hermes('{"name": "time", "arguments": "{\\"a\\": 1}"}'), "", [("time", '{"a": 1}')]),
    (HERMES, hermes('{"name": "time", "arguments": null}'), "", [("time", "{}")]),
    # broken off, or cut off: what there is of the arguments
    (HERMES, hermes('{"name": "time", "arguments": {"a": 1}'), "", [("time", '{"a": 1}')]),
    (HERMES, hermes('{"name": "time", "arguments": {"a": 1') + " so", " so", [("time", '{"a": 1\n')]),
    (HERMES, '<tool_call>{"name": "time", "arguments": {"a": tr', "", [("time", '{"a": tr')]),
    (HERMES, hermes(TIME)[:-4], "", [("time", "{}")]),
    # no calls
    (HERMES, hermes("weather(Paris)"), hermes("weather(Paris)"), []),
    (HERMES, hermes('{"arguments": {"name": "time"}}'), hermes('{"arguments": {"name": "time"}}'), []),
    (HERMES, hermes('{"name": "time", "arguments": [{}]}'), hermes('{"name": "time", "arguments": [{}]}'), []),
    (HERMES, hermes('{"name": 5, "arguments": {}}'), hermes('{"name": 5, "arguments": {}}'), []),
    (HERMES, hermes("{}", TIME), hermes("{}") + "\n", [("time", "{}")]),
    (HERMES, '<tool_call>{"name": "time"', '<tool_call>{"name": "time"', []),
    (HERMES, "<tool_call>", "<tool_call>", []),
    (HERMES, "a <tool_cal", "a <tool_cal", []),
    (HERMES, "<tool_call>" + hermes(TIME), "<tool_call>", [("time", "{}")]),
    (HERMES, " \n", " \n", []),
    (HERMES, "", "", []),
    (LLAMA3_JSON, LLAMA_WEATHER, "", [("weather", PARIS)]),
    (LLAMA3_JSON, f"\n<|python_tag|>{LLAMA_WEATHER}; {TIME}", "", [("weather", PARIS), ("time", "{}")]),
    (LLAMA3_JSON, f"{LLAMA_WEATHER} and so", " and so", [("weather", PARIS)]),
    (LLAMA3_JSON, '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    (LLAMA3_JSON, '{"answer": {"name": "time"}}', '{"answer": {"name": "time"}}', []),
    (LLAMA3_JSON, f"Like so: {LLAMA_WEATHER}", f"Like so: {LLAMA_WEATHER}", []),
    (MISTRAL, f"[TOOL_CALLS] [{WEATHER}, {TIME}]", "", [("weather", PARIS), ("time", "{}")]),
    (MISTRAL, f"Yes.[TOOL_CALLS][{WEATHER}]", "Yes.", [("weather", PARIS)]),
    # the marker is a special token, of which the text has nothing
    (MISTRAL, f" [{WEATHER}]", "", [("weather", PARIS)]),
    (MISTRAL, "[1, 2]", "[1, 2]", []),
    (MISTRAL, "[TOOL_C]", "[TOOL_C]", []),
    (MISTRAL, f"[{WEATHER}, 5]", ", 5]", [("weather", PARIS)]),
]


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"), CASES, ids=[str(number) for number in range(len(CASES))]
)
def test_content_and_calls_whole_and_character_by_character(
    format: Format, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    whole = read(format, [text])
    assert (whole.content, whole.calls) == (content, calls)
    assert whole.ids == [f"id{number}" for number in range(len(calls))]
    assert read(format, text) == whole


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "; ",
            ", ",
            "\n",
            " ",
            "text",
            "<",
        ),
        *(WEATHER, TIME, LLAMA_WEATHER, hermes(WEATHER), '{"name": "time", ', '"arguments": ', '"name": "weather"'),
        *('{"a": "b\\"', '"', "\\", "{", "}", "[", "]", ":", ",", "null", "1.5", '{"x": {}}', '"{}"', "\u00e9"),
    ]
)
FORMATS = st.sampled_from([HERMES, LLAMA3_JSON, MISTRAL])
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(FORMATS, st.lists(PIECES, max_size=12).map("".join), st.data())
def test_however_the_text_is_cut_the_deltas_add_up_to_the_same(format: Format, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    whole = read(format, [text])
    assert read(format, pieces) == whole
    assert read(format, text) == whole


@SETTINGS
@given(FORMATS, st.lists(PIECES, max_size=12).map("".join))
def test_nothing_is_lost(format: Format, text: str) -> None:
    """Text that is no call comes back whole, and with calls, what comes back is in the text in that order."""
    result = read(format, [text])
    if not result.calls:
        assert result.content == text
    letters = iter(text)
    assert all(letter in letters for letter in result.content)


@SETTINGS
@given(
    st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.none() | st.lists(st.floats(allow_nan=False)))
)
def test_any_arguments_come_back_byte_for_byte(arguments: dict[str, object]) -> None:
    for format, key in ((HERMES, "arguments"), (LLAMA3_JSON, "parameters"), (MISTRAL, "arguments")):
        written = json.dumps(arguments, ensure_ascii=False)
        call = f'{{"name": "weather", "{key}": {written}}}'
        text = {HERMES: hermes(call), LLAMA3_JSON: call, MISTRAL: f"[TOOL_CALLS] [{call}]"}[format]
        result = read(format, text)
        assert (result.content, result.calls) == ("", [("weather", written)])


def test_arguments_stream_as_they_come_and_text_does_not_wait_for_more_than_a_marker() -> None:
    parser = CallParser(HERMES, NAMES)
    assert parser.push("Well, <") == [ContentDelta("Well, ")]
    assert parser.push("b> a") == [ContentDelta("<b> a")]
    assert parser.push('<tool_call>{"name": "time", "arguments": ') == []
    opened = parser.push("{")
    assert [(delta.index, delta.name, delta.arguments) for delta in opened if isinstance(delta, ToolCallDelta)] == [
        (0, "time", ""),
        (0, "", "{"),
    ]
    assert parser.push('"a": "b') == [ToolCallDelta(0, arguments='"a": "b')]
    assert parser.push('"}') == [ToolCallDelta(0, arguments='"}')]
    assert parser.push("}\n</tool_call>") == [] and parser.finish() == []


def test_json_that_is_no_call_is_let_go_at_its_first_key() -> None:
    parser = CallParser(LLAMA3_JSON, NAMES)
    assert parser.push('{"ans') == []
    assert parser.push('wer":') == [ContentDelta("{"), ContentDelta('"answer":')]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000,
        "<tool_call>{" * 20_000,
        '<tool_call>{\\"' * 20_000 + '"x',
        '<tool_call>{"a":"' * 20_000 + '"x',
        hermes(f'{{"name": "time", "arguments": {{"a": "{"x" * 250_000}"}}}}'),
    ],
    ids=["markers", "openings", "escapes", "strings", "arguments"],
)
def test_long_outputs_take_time_in_proportion(text: str) -> None:
    """Each character is looked at a few times, whatever it pretends to be: this would take minutes otherwise."""
    result = read(HERMES, [text])
    assert len(result.content) + sum(len(arguments) for _, arguments in result.calls) >= 200_000
