"""What a completions body asks for, and its answers, whole and streamed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from switchgear.core.gateway.openai.completion_answer import CompletionRenderer
from switchgear.core.gateway.openai.completions import CompletionCall, parse_completion
from switchgear.core.gateway.openai.errors import ApiError
from switchgear.core.gateway.results import Choice, Chunk, Result

from .made import CREATED, WIRE, choice, completion_body, decode, position, result


def parse(**fields: Any) -> CompletionCall:
    return parse_completion(completion_body(**fields), WIRE)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    return caught.value


def renderer(**fields: Any) -> CompletionRenderer:
    return CompletionRenderer(parse(**fields), "cmpl-1", CREATED, "fp_abc", decode)


def read(answer: bytes) -> Completion:
    """As the SDK does, which does not mind the nulls that OpenAI sends where its own types have none."""
    return Completion.construct(**msgspec.json.decode(answer))


def whole(*results: Result, **fields: Any) -> Completion:
    return read(renderer(**fields).whole(results))


def test_a_plain_body_asks_with_the_defaults_of_openai() -> None:
    call = parse()
    (ask,) = call.asks
    assert (ask.prompt, ask.messages, ask.add_special, ask.default_max_tokens) == ("once", (), True, False)
    assert (ask.params.max_tokens, ask.params.n, ask.params.logprobs) == (16, 1, None)
    assert not parse(add_special_tokens=False).asks[0].add_special


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_each_form_of_a_prompt(given: Any, prompts: tuple[Any, ...]) -> None:
    assert tuple(ask.prompt for ask in parse(prompt=given).asks) == prompts


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (3, "prompt"),
        ({}, "prompt"),
        ([[]], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([[1], 2], "prompt[1]"),
        ([[1, 2.5]], "prompt[0][1]"),
        ([-1], "prompt[0]"),
        ([10**30], "prompt[0]"),
        ([50], "prompt"),
        (["a"] * 2049, "prompt"),
        ([[[1]]], "prompt[0][0]"),
    ],
)
def test_a_wrong_prompt_is_named(given: Any, param: str) -> None:
    error = refusal(prompt=given)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"prompt": ["a"] * 17, "n": 128}, "n"),
        ({"prompt": ["a"] * 2048, "best_of": 2}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 0, "stream": True}, "echo"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)


def test_choices_of_several_prompts_are_numbered_through() -> None:
    answer = whole(
        result(choice(0, ["a"]), choice(1, ["b"])),
        result(choice(0, ["c"]), choice(1, ["d"]), prompt=[1]),
        prompt=["x", "y"],
        n=2,
    )
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 4, 8)
    assert answer.object == "text_completion"


def test_echo_begins_with_the_prompt_as_it_was_given() -> None:
    assert whole(result(choice(0, [" upon"])), echo=True).choices[0].text == "once upon"
    assert whole(result(choice(0, ["!"])), echo=True, prompt=[0, 1]).choices[0].text == "ab!"
    assert renderer(echo=True, stream=True, prompt=["x", "y"], n=2).opening()[2].count(b'"index":2,"text":"y"') == 1
    assert renderer(stream=True).opening() == []


def test_echo_with_logprobs_scores_the_prompt() -> None:
    scored = result(choice(0, ["d"], logprobs=[-4.0]), prompt=(0, 1), prompt_logprobs=(None, position("bc", -3.0)))
    logprobs = whole(scored, echo=True, logprobs=1, prompt=[0, 1]).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bc", "d"]
    assert logprobs.token_logprobs == [None, -3.0, -4.0]
    assert logprobs.top_logprobs == [None, {"!": -0.25, "bc": -3.0}, {"!": -0.25, "d": -4.0}]
    assert logprobs.text_offset == [0, 1, 3]
    assert parse(echo=True, logprobs=2).asks[0].params.prompt_logprobs == 2


def test_a_first_token_that_is_none_of_the_text_takes_no_room_in_it() -> None:
    scored = result(choice(0, ["x"], logprobs=[-4.0]), prompt=(25, 1), prompt_logprobs=(None, position("once", -3.0)))
    logprobs = whole(scored, echo=True, logprobs=0).choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == (["z", "once", "x"], [0, 0, 4])
    assert logprobs.top_logprobs == [None, {"once": -3.0}, {"x": -4.0}]


def test_scoring_shows_nothing_of_the_token_that_the_engine_made() -> None:
    scored = result(choice(0, ["d"], logprobs=[-4.0]), prompt=(0, 1), prompt_logprobs=(None, position("b", -3.0)))
    answer = whole(scored, echo=True, logprobs=1, max_tokens=0, prompt=[0, 1])
    shown = answer.choices[0]
    assert shown.logprobs is not None and answer.usage is not None
    assert (shown.text, shown.finish_reason, shown.logprobs.tokens) == ("ab", "length", ["a", "b"])
    assert answer.usage.completion_tokens == 0
    made = renderer(max_tokens=0, stream=True)
    assert made.pieces(Chunk(0, "d", (3,))) == []
    (end,) = made.pieces(Chunk(0, "d", (3,), "stop"))
    assert read(end).choices[0].text == ""


def test_the_best_by_mean_log_probability_are_returned() -> None:
    answers = result(
        choice(0, ["a", "a"], logprobs=[-1.0, -3.0]),
        choice(1, ["b"], logprobs=[-0.5]),
        choice(2, ["c", "c", "c"], logprobs=[-1.0, -1.0, -1.0]),
    )
    answer = whole(answers, n=2, best_of=3)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "b"), (1, "ccc")]
    assert [choice.logprobs for choice in answer.choices] == [None, None]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6, "those that were not chosen were computed too"
    assert parse(n=2, best_of=3).asks[0].params.logprobs == 0
    assert parse(n=2, best_of=2).asks[0].params.logprobs is None


def test_parts_of_a_character_are_told_apart_and_begin_where_it_begins() -> None:
    parts = tuple(position("\ufffd", token_bytes=bytes([byte])) for byte in "\xe9".encode())
    answer = Choice(0, (1, 2, 3), "\xe9!", "stop", (*parts, position("!")), choice(0, []).timing)
    logprobs = whole(result(answer), logprobs=0).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs.text_offset == [0, 0, 1]


def test_prompt_logprobs_are_shown_where_they_were_asked_for() -> None:
    scored = result(choice(0, ["a"]), prompt=(1, 7), prompt_logprobs=(None, position("b")))
    extra = whole(scored, prompt_logprobs=0).choices[0].model_extra
    assert extra is not None
    assert extra["prompt_logprobs"][1]["7"] == {"logprob": -0.5, "rank": 2, "decoded_token": "b"}
    assert whole(scored).choices[0].model_extra == {}


def reassembled(events: list[bytes]) -> dict[int, tuple[str, list[Any], str | None]]:
    texts: defaultdict[int, str] = defaultdict(str)
    entries: defaultdict[int, list[Any]] = defaultdict(list)
    reasons: dict[int, str | None] = {}
    for event in events:
        for piece in read(event).choices:
            assert reasons.get(piece.index) is None, "nothing comes after the finish reason"
            texts[piece.index] += piece.text
            reasons[piece.index] = piece.finish_reason
            entries[piece.index] += rows(piece.logprobs)
    return {index: (texts[index], entries[index], reasons[index]) for index in sorted(reasons)}


def rows(logprobs: Any) -> list[Any]:
    if logprobs is None:
        return []
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    return list(zip(*lists, strict=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_stream_put_together_is_the_whole_answer(data: st.DataObject) -> None:
    num_prompts, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    logprobs, usage = data.draw(st.sampled_from([None, 0, 2])), data.draw(st.booleans())
    texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=5)
    fields: dict[str, Any] = {
        "n": n,
        "prompt": [f"prompt {number}" for number in range(num_prompts)],
        "logprobs": logprobs,
        "echo": logprobs is None and data.draw(st.booleans()),
    }
    results = []
    for _ in range(num_prompts):
        drawn = [data.draw(texts) for _ in range(n)]
        scores = [None if logprobs is None else [-1.0] * len(words) for words in drawn]
        choices = [choice(k, words, "stop", scores[k]) for k, words in enumerate(drawn)]
        results.append(result(*choices))
    made = renderer(**fields, stream=True, stream_options={"include_usage": True} if usage else None)
    events = made.opening()
    for place in range(6):
        for prompt, answer in enumerate(results):
            for one in answer.choices:
                events += made.pieces(piece_of(one, place), prompt)
    closing = made.closing(results)
    expected = whole(*results, **fields)
    assert reassembled(events) == {
        choice.index: (choice.text, rows(choice.logprobs), choice.finish_reason) for choice in expected.choices
    }
    assert [read(event).usage for event in closing] == ([expected.usage] if usage else [])
    assert all((b'"usage":null' in event) == usage for event in events)


def piece_of(choice: Choice, place: int) -> Chunk:
    """One token a piece, the last with whatever is left of the text."""
    letters = choice.text[2 * place : 2 * place + 2] if place < 5 else choice.text[10:]
    logprobs = None if choice.logprobs is None else choice.logprobs[place : place + 1]
    reason = choice.finish_reason if place == 5 else None
    return Chunk(choice.index, letters, choice.token_ids[place : place + 1], reason, logprobs=logprobs)
