from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from switchgear.core.errors import RequestError
from switchgear.core.gateway import http
from switchgear.core.gateway.http import ClientLeft, Envelope, json_response, read_body, together, while_connected
from switchgear.core.gateway.openai.errors import ApiError, bad_request

LEAVES: Message = {"type": "http.disconnect"}


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def receiving(*messages: Message) -> Receive:
    """Hands out messages, and then nothing for ever."""
    queue = list(messages)

    async def receive() -> Message:
        if not queue:
            await asyncio.get_running_loop().create_future()
        return queue.pop(0)

    return receive


def scope_of(path: str = "/x", method: str = "POST", headers: Sequence[tuple[bytes, bytes]] = ()) -> Scope:
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": list(headers)}


class Exchange:
    """What an application inside the envelope answered."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self.messages: list[Message] = []
        self.ends: list[tuple[str, int]] = []
        asyncio.run(Envelope(app, lambda: "cafe", lambda *end: self.ends.append(end))(scope, receiving(), self._send))

    async def _send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def json(self) -> Any:
        return msgspec.json.decode(b"".join(message.get("body", b"") for message in self.messages))


def raising(error: BaseException) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return app


async def fine(scope: Scope, receive: Receive, send: Send) -> None:
    await json_response(b"{}")(scope, receive, send)


# -- the envelope ---------------------------------------------------------------------------------------------------


def test_every_answer_has_an_id_and_the_plan() -> None:
    exchange = Exchange(fine, scope_of())
    assert exchange.headers["x-request-id"].startswith("req-") and exchange.headers["x-switchgear-plan"] == "cafe"
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.ends == [("unknown", 200)]


def test_the_clients_own_id_comes_back() -> None:
    assert Exchange(fine, scope_of(headers=[(b"x-request-id", b"a-1.b:c")])).headers["x-request-id"] == "a-1.b:c"


@pytest.mark.parametrize("given", [b"", b"two words", b"x" * 129, b"caf\xc3\xa9", b'"'])
def test_an_id_that_could_do_harm_is_replaced(given: bytes) -> None:
    assert Exchange(fine, scope_of(headers=[(b"x-request-id", given)])).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (bad_request("No.", "n"), 400, {"message": "No.", "type": "invalid_request_error", "param": "n", "code": None}),
        (
            RequestError("the prompt is empty"),
            400,
            {"message": "the prompt is empty", "type": "invalid_request_error", "param": None, "code": None},
        ),
    ],
)
def test_what_is_raised_on_purpose_becomes_an_error_object(
    error: Exception, status: int, expected: dict[str, str | None]
) -> None:
    exchange = Exchange(raising(error), scope_of())
    assert (exchange.status, exchange.json) == (status, {"error": expected})
    assert "x-request-id" in exchange.headers
    assert exchange.ends == [("unknown", status)]


def test_what_nobody_foresaw_is_500_and_its_text_is_for_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "switchgear"):
        exchange = Exchange(raising(ZeroDivisionError("secret")), scope_of())
    assert exchange.status == 500
    assert "secret" not in exchange.json["error"]["message"]
    assert set(exchange.json["error"]) == {"message", "type", "param", "code"}
    (record,) = caplog.records
    assert "secret" in record.getMessage() and exchange.headers["x-request-id"] in record.getMessage()
    assert record.exc_info


def test_unknown_paths_and_wrong_methods_are_error_objects_too() -> None:
    async def handler(request: Any) -> Any:
        raise AssertionError("is never asked")

    router = Router([Route("/x", handler, methods=["POST"])], redirect_slashes=False)
    missing = Exchange(router, scope_of("/nowhere" + "x" * 1000))
    assert missing.status == 404
    assert "/nowherexx" in missing.json["error"]["message"] and len(missing.json["error"]["message"]) < 250
    wrong = Exchange(router, scope_of("/x", "DELETE"))
    assert (wrong.status, wrong.headers["allow"], wrong.json["error"]["code"]) == (405, "POST", "method_not_allowed")
    assert wrong.ends == [("handler", 405)]


def test_nothing_is_sent_to_a_client_that_left() -> None:
    exchange = Exchange(raising(ClientLeft()), scope_of())
    assert (exchange.messages, exchange.ends) == ([], [("unknown", 0)])


def test_an_error_after_the_status_is_left_to_the_server() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Exchange(app, scope_of())


# -- bodies ---------------------------------------------------------------------------------------------------------


def read(*messages: Message, limit: int = 10, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    return asyncio.run(read_body(scope_of(headers=headers), receiving(*messages), limit))


def test_a_body_in_parts_is_put_together() -> None:
    assert read(part(b"01234", more=True), part(b"", more=True), part(b"56789")) == b"0123456789"


def test_a_body_that_says_it_is_too_long_is_not_read() -> None:
    with pytest.raises(ApiError, match="larger than 10 bytes") as error:
        read(headers=[(b"content-length", b"11")])
    assert error.value.status == 413


def test_a_body_of_unknown_length_is_read_up_to_the_limit() -> None:
    with pytest.raises(ApiError, match="larger than 10 bytes"):
        read(part(b"012345", more=True), part(b"67890", more=True))


def test_a_body_that_does_not_come_is_waited_for_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    with pytest.raises(ApiError, match=r"within 0\.05 seconds") as error:
        read(part(b"0", more=True))
    assert (error.value.status, error.value.headers["connection"]) == (408, "close")


def test_a_client_that_leaves_while_it_sends() -> None:
    with pytest.raises(ClientLeft):
        read(part(b"0", more=True), LEAVES)


# -- clients that leave ---------------------------------------------------------------------------------------------


def test_work_is_cancelled_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("closed")

    with pytest.raises(ClientLeft):
        asyncio.run(while_connected(receiving(part(b""), LEAVES), work()))
    assert ended == ["closed"]


def test_work_that_ends_first_counts() -> None:
    async def work() -> str:
        return "answer"

    async def failing() -> str:
        raise RequestError("no")

    assert asyncio.run(while_connected(receiving(), work())) == "answer"
    with pytest.raises(RequestError):
        asyncio.run(while_connected(receiving(), failing()))


def test_who_cancels_the_whole_cancels_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("closed")

    async def run() -> None:
        task = asyncio.ensure_future(while_connected(receiving(), work()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ended == ["closed"]


@pytest.mark.parametrize("num_works", [1, 3])
def test_works_run_together_and_keep_their_order(num_works: int) -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.01 * (num_works - number))
        return number

    assert asyncio.run(together(*(work(number) for number in range(num_works)))) == list(range(num_works))


def test_the_first_failure_cancels_the_others_and_is_the_one_that_is_raised() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("closed")

    async def failing() -> None:
        raise RequestError("no")

    with pytest.raises(RequestError, match="no"):
        asyncio.run(together(slow(), failing(), slow()))
    assert ended == ["closed", "closed"]
