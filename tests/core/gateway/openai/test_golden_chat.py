"""However a chat answer is cut into chunks, the stream that the SDK puts together is the whole answer."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from switchgear.core.gateway.openai.chat import parse_chat
from switchgear.core.gateway.openai.chat_answer import ChatRenderer
from switchgear.core.gateway.results import Choice, Chunk, Result

from .made import CREATED, WIRE, BracketParser, chat_body, choice, position, result

TOOL = {"type": "function", "function": {"name": "add"}}


def renderer(has_tools: bool = False, **fields: Any) -> ChatRenderer:
    call = parse_chat(chat_body(**fields), WIRE)
    return ChatRenderer(call, "chatcmpl-1", CREATED, "fp_abc", BracketParser if has_tools else None)


def chunks_of(answer: Result, rng: random.Random) -> list[Chunk]:
    """The choices cut into chunks and mixed, each choice in its order; text may come later than its tokens."""
    queues = [_pieces(choice, rng) for choice in answer.choices]
    chunks = []
    while any(queues):
        chunks.append(rng.choice([queue for queue in queues if queue]).pop(0))
    return chunks


def _pieces(choice: Choice, rng: random.Random) -> list[Chunk]:
    cuts = range(rng.randint(0, 4))
    tokens = sorted([0, len(choice.token_ids), *(rng.randint(0, len(choice.token_ids)) for _ in cuts)])
    texts = sorted([0, len(choice.text), *(rng.randint(0, len(choice.text)) for _ in cuts)])
    pieces = [
        Chunk(
            index=choice.index,
            text=choice.text[texts[place] : texts[place + 1]],
            token_ids=choice.token_ids[tokens[place] : tokens[place + 1]],
            logprobs=None if choice.logprobs is None else choice.logprobs[tokens[place] : tokens[place + 1]],
        )
        for place in range(len(tokens) - 1)
    ]
    return [*pieces, Chunk(choice.index, "", (), choice.finish_reason)]


def stream_of(renderer: ChatRenderer, answer: Result, rng: random.Random) -> list[ChatCompletionChunk]:
    events = renderer.opening()
    for chunk in chunks_of(answer, rng):
        events += renderer.pieces(chunk)
    events += renderer.closing([answer])
    return [ChatCompletionChunk.model_validate_json(event, strict=True) for event in events]


def reassembled(chunks: Sequence[ChatCompletionChunk]) -> dict[int, Any]:
    """The whole answer as the SDK's own shapes say it should be put together."""
    content: dict[int, str | None] = {}
    calls: defaultdict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    logprobs: defaultdict[int, list[Any]] = defaultdict(list)
    reasons: dict[int, str] = {}
    for event in chunks:
        for piece in event.choices:
            assert piece.index not in reasons, "nothing comes after the finish reason"
            content.setdefault(piece.index, None)
            if piece.delta.content is not None:
                content[piece.index] = (content[piece.index] or "") + piece.delta.content
            for call in piece.delta.tool_calls or []:
                assert call.function is not None
                known = calls[piece.index].setdefault(
                    call.index, {"id": call.id, "type": call.type, "name": call.function.name, "arguments": ""}
                )
                known["arguments"] += call.function.arguments or ""
            if piece.logprobs is not None:
                logprobs[piece.index] += piece.logprobs.content or []
            if piece.finish_reason is not None:
                reasons[piece.index] = piece.finish_reason
    return {
        index: (content[index], [calls[index][at] for at in sorted(calls[index])], logprobs[index], reasons[index])
        for index in sorted(content)
    }


def parts_of(whole: ChatCompletion) -> dict[int, Any]:
    return {
        choice.index: (
            choice.message.content,
            [
                {"id": call.id, "type": call.type, "name": call.function.name, "arguments": call.function.arguments}
                for call in choice.message.tool_calls or []
                if call.type == "function"
            ],
            (choice.logprobs.content or []) if choice.logprobs else [],
            choice.finish_reason,
        )
        for choice in whole.choices
    }


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=8)
WITH_CALLS = st.lists(st.sampled_from(["a", " b", "[add|{}]", "[add|", '{"a": 1}', "]", "[mul|", "["]), max_size=8)


@pytest.mark.parametrize("has_tools", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_stream_put_together_is_the_whole_answer(has_tools: bool, data: st.DataObject, seed: int) -> None:
    n = data.draw(st.integers(1, 3))
    wants_logprobs, wants_usage = data.draw(st.booleans()), data.draw(st.booleans())
    choices = []
    for index in range(n):
        texts = data.draw(WITH_CALLS if has_tools else TEXTS)
        scores = [-0.5] * len(texts) if wants_logprobs else None
        reason = data.draw(st.sampled_from(["stop", "length"]))
        choices.append(choice(index, texts, reason, scores, rest="".join(data.draw(TEXTS)) if not has_tools else ""))
    answer = result(*choices, num_cached=2)
    fields: dict[str, Any] = {"n": n, "logprobs": wants_logprobs, "tools": [TOOL] if has_tools else None}
    whole = ChatCompletion.model_validate_json(renderer(has_tools, **fields).whole([answer]), strict=True)
    streamed = {**fields, "stream": True, "stream_options": {"include_usage": True} if wants_usage else None}
    chunks = stream_of(renderer(has_tools, **streamed), answer, random.Random(seed))
    assert reassembled(chunks) == parts_of(whole)
    assert {(event.id, event.created, event.model, event.system_fingerprint) for event in chunks} == {
        (whole.id, whole.created, whole.model, whole.system_fingerprint)
    }
    usages = [event.usage for event in chunks if event.usage is not None]
    assert usages == ([whole.usage] if wants_usage else [])
    assert [len(event.choices) for event in chunks] == [1] * (len(chunks) - wants_usage) + [0] * wants_usage


def test_a_chunk_to_the_byte() -> None:
    made = renderer(stream=True, stream_options={"include_usage": True})
    head = (
        f'{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":{CREATED},"model":"tiny",'
        '"system_fingerprint":"fp_abc","choices":['
    )
    first = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}'
    assert made.opening() == [(head + first).encode()]
    text = '{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}],"usage":null}'
    end = '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}'
    pieces = made.pieces(Chunk(0, "Hi", (1,), "stop"))
    assert pieces == [(head + text).encode(), (head + end).encode()]
    usage = (
        '],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,'
        '"prompt_tokens_details":{"cached_tokens":0}}}'
    )
    assert made.closing([result(choice(0, ["Hi"]))]) == [(head + usage).encode()]


def test_a_whole_answer_to_the_byte() -> None:
    assert (
        renderer().whole([result(choice(0, ["Hi"]), num_cached=2)])
        == (
            f'{{"id":"chatcmpl-1","object":"chat.completion","created":{CREATED},"model":"tiny",'
            '"system_fingerprint":"fp_abc","choices":[{"index":0,"message":{"content":"Hi","role":"assistant",'
            '"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,'
            '"total_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}'
        ).encode()
    )


def test_without_include_usage_no_chunk_speaks_of_usage() -> None:
    made = renderer(stream=True)
    events = made.opening() + made.pieces(Chunk(0, "Hi", (1,), "stop"))
    assert not any(b"usage" in event for event in events)
    assert made.closing([result(choice(0, ["Hi"]))]) == []


def test_a_chunk_without_anything_new_sends_nothing() -> None:
    assert renderer(stream=True).pieces(Chunk(0, "", (3,))) == []


def test_a_tool_call_is_streamed_by_index_with_its_name_first() -> None:
    made = renderer(True, stream=True, tools=[TOOL])
    (opening,) = made.opening()
    assert ChatCompletionChunk.model_validate_json(opening).choices[0].delta.content is None
    events = made.pieces(Chunk(0, "so[add|{}][mul|", (1,), None)) + made.pieces(Chunk(0, "1]", (2,), "stop"))
    deltas = [ChatCompletionChunk.model_validate_json(event).choices[0] for event in events]
    calls = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
    assert [call.model_dump(exclude_unset=True) for call in calls] == [
        {"index": 0, "id": "call_0", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 1, "id": "call_1", "type": "function", "function": {"name": "mul", "arguments": ""}},
        {"index": 1, "function": {"arguments": "1"}},
    ]
    assert deltas[-1].finish_reason == "tool_calls"


def test_a_call_that_was_cut_off_ends_with_length() -> None:
    whole = renderer(True, tools=[TOOL]).whole([result(choice(0, ["[add|{"], "length"))])
    answer = ChatCompletion.model_validate_json(whole).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("length", None)


def test_logprobs_have_the_bytes_of_tokens_that_are_parts_of_characters() -> None:
    part = position("\ufffd", token_bytes=b"\xf0\x9f")
    answer = Choice(0, (1,), "", "length", (part,), choice(0, []).timing)
    whole = ChatCompletion.model_validate_json(renderer(logprobs=True, top_logprobs=1).whole([result(answer)]))
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert (logprobs.content[0].bytes, logprobs.content[0].top_logprobs[0].token) == ([0xF0, 0x9F], "!")


def test_a_probability_of_zero_is_a_number_that_json_has() -> None:
    whole = renderer(logprobs=True).whole([result(choice(0, ["a"], logprobs=[float("-inf")]))])
    assert b'"logprob":-9999.0' in whole


def test_an_output_that_somebody_cut_off_is_not_complete() -> None:
    assert b'"finish_reason":"length"' in renderer().whole([result(choice(0, ["a"], "abort"))])


def test_prompt_logprobs_are_shown_by_token_id() -> None:
    scored = result(choice(0, ["a"]), prompt=(1, 7), prompt_logprobs=(None, position("b")))
    whole = ChatCompletion.model_validate_json(renderer(prompt_logprobs=1).whole([scored]))
    assert whole.model_extra is not None
    assert whole.model_extra["prompt_logprobs"] == [
        None,
        {
            "9": {"logprob": -0.25, "rank": 1, "decoded_token": "!"},
            "7": {"logprob": -0.5, "rank": 2, "decoded_token": "b"},
        },
    ]
