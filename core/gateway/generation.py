"""One call that asks for text, from its submission to the last byte of the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from .gateway import Gateway
from .http import ClientLeft, json_response, together, told, while_connected
from .openai.wire import Call, Renderer
from .results import Chunk, Result
from .service import Visitor
from .sse import DONE, EventStream
from .tracing import nanoseconds_now

Show = Callable[[int, Sequence[Chunk]], Awaitable[None]]
"""Called with the number of a prompt and what is new of its answer."""


class Generation:
    """The answer of a handler, as an application: it runs the call and sends what comes, whole or as events.

    visitor: its request id is that of the answer, and the engine's for a single prompt. headers: of the request.
    """

    def __init__(
        self, gateway: Gateway, call: Call, renderer: Renderer, visitor: Visitor, headers: Mapping[str, str]
    ) -> None:
        self.gateway = gateway
        self.call = call
        self.renderer = renderer
        self.visitor = visitor
        self.headers = headers
        self.has_token = False
        self.arrival = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.arrival = scope["arrival"]
        with self.gateway.doors.inside():
            try:
                if self.call.stream:
                    await self._answer_in_events(scope, receive, send)
                else:
                    results = await while_connected(receive, self._run(self._show_nothing))
                    await json_response(self.renderer.whole(results))(scope, receive, send)
            except ClientLeft:
                phase = "after_first_token" if self.has_token else "before_first_token"
                self.gateway.metrics.client_disconnects.labels(phase).inc()
                raise

    async def _show_nothing(self, number: int, chunks: Sequence[Chunk]) -> None:
        pass

    async def _answer_in_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = EventStream(send, self.renderer.opening, self.gateway.config.keepalive_seconds)

        async def show(number: int, chunks: Sequence[Chunk]) -> None:
            await events.write([piece for chunk in chunks for piece in self.renderer.pieces(chunk, number)])

        async def stream() -> None:
            try:
                results = await self._run(show)
                await events.write([*self.renderer.closing(results), DONE])
            except Exception as error:
                if not events.has_begun:
                    raise
                await events.write_error(told(error, scope))

        try:
            await while_connected(receive, stream())
            await events.end()
        finally:
            events.stop()

    async def _run(self, show: Show) -> list[Result]:
        """Every prompt at once; if one fails the others are aborted."""
        return await together(*(self._run_prompt(number, show) for number in range(len(self.call.asks))))

    async def _run_prompt(self, number: int, show: Show) -> Result:
        gateway, submitted = self.gateway, nanoseconds_now()
        visitor = numbered(self.visitor, number) if len(self.call.asks) > 1 else self.visitor
        stream = await gateway.service.submit(self.call.asks[number], visitor)
        try:
            is_first = True
            async for chunks in stream:
                if is_first:
                    is_first, self.has_token = False, True
                    gateway.metrics.time_to_first_token.observe(time.perf_counter() - self.arrival)
                gateway.metrics.generated_tokens.inc(sum(len(chunk.token_ids) for chunk in chunks))
                await show(number, chunks)
            result = stream.result
        finally:
            stream.close()
        gateway.metrics.count_result(result, time.perf_counter() - self.arrival)
        if gateway.tracer is not None:
            gateway.tracer.record(result, submitted, self.headers)
        return result


def numbered(visitor: Visitor, number: int) -> Visitor:
    """The same for one of several prompts of a call, since each needs an id of its own."""
    return replace(visitor, request_id=f"{visitor.request_id}-{number}")
