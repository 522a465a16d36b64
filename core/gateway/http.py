"""What goes around every exchange: ids, errors as OpenAI's clients know them, bodies that end, clients that leave."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import SwitchgearError
from .openai.errors import ApiError, api_error_of, method_not_allowed, not_found, too_large, too_slow

logger = logging.getLogger(__name__)

T = TypeVar("T")

VALID_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
"""Of an inbound request id: nothing that could break a header, a log or a label."""
BODY_SECONDS = 60.0
"""How long a client may take to send a body: what has come of it is kept in memory."""
SHOWN_PATH = 100
"""Characters of an unknown path that an error repeats."""


class ClientLeft(Exception):
    """Nobody is there any more to answer."""


# -- around the handlers --------------------------------------------------------------------------------------------


class Envelope:
    """The outermost application: whatever happens inside, what leaves has an id, the plan's hash and OpenAI's form.

    plan_hash: empty until it is known. on_end: told the name of the endpoint and the status, 0 where nobody was there
    to send one to.
    """

    def __init__(self, app: ASGIApp, plan_hash: Callable[[], str], on_end: Callable[[str, int], None]) -> None:
        self.app = app
        self.plan_hash = plan_hash
        self.on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0
        request_id = request_id_of(scope)
        scope["request_id"] = request_id
        scope["arrival"] = time.perf_counter()
        # with an app in it, starlette raises its 404 and 405 instead of answering in plain text
        scope["app"] = self

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if plan_hash := self.plan_hash():
                    message["headers"].append((b"x-switchgear-plan", plan_hash.encode()))
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except ClientLeft:
            pass
        except Exception as error:
            if status:
                # a status was sent, so all that is left is to cut the connection, which the server does
                raise
            await error_response(told(error, scope))(scope, receive, send_marked)
        finally:
            endpoint = scope.get("endpoint")
            self.on_end(getattr(endpoint, "__name__", "unknown"), status)


def request_id_of(scope: Scope) -> str:
    """The client's own, where it is harmless, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and VALID_ID.fullmatch(value):
            return str(value, "ascii")
    return f"req-{uuid.uuid4().hex}"


def told(error: Exception, scope: Scope) -> ApiError:
    """What the client hears of an exception; what nobody foresaw is logged with its traceback."""
    match error:
        case HTTPException(status_code=405):
            allowed = (error.headers or {})["Allow"].split(", ")
            return method_not_allowed(scope["method"], ", ".join(sorted(allowed)))
        case HTTPException():
            path = scope["path"] if len(scope["path"]) <= SHOWN_PATH else f"{scope['path'][:SHOWN_PATH]}..."
            return not_found(f"There is nothing at {path}; GET /openapi.json lists what there is.")
        case ApiError() | SwitchgearError():
            return api_error_of(error)
    logger.error("request %s: %s: %s", scope["request_id"], type(error).__name__, error, exc_info=error)
    return api_error_of(error)


def error_response(error: ApiError) -> Response:
    return json_response(msgspec.json.encode(error.body()), error.status, error.headers)


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


# -- for the handlers -----------------------------------------------------------------------------------------------


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises ApiError beyond `limit` bytes, without keeping them, or too late, and ClientLeft."""
    message = f"The body is larger than {limit} bytes, which is the most this server takes; send less at once."
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise too_large(message)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise ClientLeft
                body += part["body"]
                if len(body) > limit:
                    raise too_large(message)
                if not part["more_body"]:
                    return bytes(body)
    except TimeoutError:
        raise too_slow(f"The body did not come within {BODY_SECONDS:g} seconds; send it faster.") from None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. When the client leaves first, `work` is cancelled and ClientLeft raised.

    The body must have been read, and the last bytes of the answer are sent after this, since a server may say that the
    client left once it has them.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """What each of `works` returns. The first that fails cancels the others, and its exception is raised."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
