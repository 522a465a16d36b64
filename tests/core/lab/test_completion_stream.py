import json
from typing import Any

import pytest
from switchgear.core.lab.completion_stream import CompletionStream, message_of


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(piece: str, reason: str | None = None) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "text": piece, "finish_reason": reason}]})


USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
)
DONE = b"data: [DONE]\n\n"


def read(*parts: bytes) -> CompletionStream:
    """Each part a second after the one before it."""
    stream = CompletionStream()
    for second, part in enumerate(parts, 1):
        stream.take(part, float(second))
    return stream


def test_pieces_have_the_times_at_which_they_came() -> None:
    stream = read(text("a"), text("b") + text("c"), text("", "length") + USAGE + DONE)
    assert stream.token_times == (1.0, 2.0, 2.0)
    assert ("".join(stream.text), stream.finish_reason, stream.num_output) == ("abc", "length", 3)
    assert stream.usage is not None and stream.usage.prompt_tokens_details is not None
    assert stream.usage.prompt_tokens_details.cached_tokens == 4
    assert stream.is_whole and not stream.error


def test_an_event_may_come_in_parts_and_lines_may_end_otherwise() -> None:
    whole = (text("a") + DONE).replace(b"\n", b"\r\n")
    stream = read(*(whole[at : at + 1] for at in range(len(whole))))
    assert stream.text == ["a"] and stream.is_whole
    assert stream.times == [float(whole.index(b"\n") + 1)]


def test_chat_and_comments() -> None:
    chat = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    stream = read(b": ping\n\n", chat, event({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}))
    assert (stream.text, stream.times, stream.finish_reason) == (["Hi"], [3.0], "stop")


def test_a_last_token_without_text_came_with_the_end() -> None:
    assert read(text("a"), text("b"), text("", "length"), USAGE).token_times == (1.0, 2.0, 3.0)
    # without counts nothing is known of it
    assert read(text("a"), text("b"), text("", "length")).token_times == (1.0, 2.0)
    assert read(text("a"), text("b"), text("", "length")).num_output == 2


@pytest.mark.parametrize("error", [{"message": "no room", "type": "x"}, "no room"])
def test_an_error_in_the_stream(error: Any) -> None:
    assert read(text("a"), event({"error": error})).error == "no room"


def test_what_is_no_completion_is_an_error() -> None:
    assert "no completion" in read(b"data: {\n\n").error
    assert "no completion" in read(b'data: {"choices": 3}\n\n').error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too\\n long"}}', "too long"),
        (b'{"error": "bad key"}', "bad key"),
        (b"<html>\n 502", "<html> 502"),
        (b"", "no reason given"),
    ],
)
def test_the_message_of_an_error(body: bytes, message: str) -> None:
    assert message_of(body) == message
