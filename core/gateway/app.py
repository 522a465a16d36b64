"""The routes of the server, and for each a handler that reads, asks the service and answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from .. import VERSION
from ..errors import ConfigError, SwitchgearError
from .ask import Ask
from .gateway import Gateway
from .generation import Generation, numbered
from .http import Envelope, json_response, read_body, together, while_connected
from .keys import Caller
from .metrics import CONTENT_TYPE
from .openai.chat import parse_chat
from .openai.chat_answer import ChatRenderer
from .openai.completion_answer import CompletionRenderer
from .openai.completions import parse_completion
from .openai.embeddings import parse_embedding, render_embeddings
from .openai.errors import bad_request, forbidden, not_found
from .openai.models import get_model, list_models
from .openai.schema import openapi
from .openai.tokens import parse_detokenize, parse_tokenize, render_detokenize, render_tokenize
from .openai.wire import fingerprint_of
from .service import Visitor
from .tool_calls.prepare import prepare_tools

STATS_SECONDS = 1.0
"""How long a scrape waits for plugins' counters, which come between two steps of the engine."""

_arguments_decoder = msgspec.json.Decoder(dict[str, Any])


def make_app(gateway: Gateway) -> ASGIApp:
    """The whole application of one server."""
    handlers = Handlers(gateway)
    routes = [
        Route("/v1/chat/completions", handlers.chat_completions, methods=["POST"]),
        Route("/v1/completions", handlers.completions, methods=["POST"]),
        Route("/v1/embeddings", handlers.embeddings, methods=["POST"]),
        Route("/v1/models", handlers.models),
        Route("/v1/models/{model:path}", handlers.model),
        Route("/tokenize", handlers.tokenize, methods=["POST"]),
        Route("/detokenize", handlers.detokenize, methods=["POST"]),
        Route("/health", handlers.health),
        Route("/ready", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/plan", handlers.plan),
        Route("/openapi.json", handlers.openapi),
        Route("/admin/{plugin}/{command}", handlers.admin, methods=["POST"]),
    ]
    return Envelope(Router(routes, redirect_slashes=False), lambda: gateway.plan_hash, gateway.metrics.count_request)


class Handlers:
    """One method for each route. What they raise becomes an error in OpenAI's form further out."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.service = gateway.service

    # -- text, vectors and tokens -----------------------------------------------------------------------------------

    async def chat_completions(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        wire = self.gateway.wire
        call = parse_chat(await self._body(request), wire)
        self.gateway.doors.check_prompts(call.asks, "messages")
        visitor = visitor_of(caller, "chatcmpl", call.priority, call.deadline_seconds)
        use = prepare_tools(
            call.tools,
            call.tool_choice,
            self.service.prompts.template_variables,
            parallel=call.parallel_tool_calls,
            response_format=call.response_format,
        )
        if use.structure is not None:
            params = replace(call.ask.params, structure=use.structure)
            call = replace(call, asks=(replace(call.ask, params=params),))
        fingerprint = fingerprint_of(self.gateway.plan_hash)
        renderer = ChatRenderer(call, visitor.request_id, now(), fingerprint, use.make_parser)
        return Generation(self.gateway, call, renderer, visitor, request.headers)

    async def completions(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        wire = self.gateway.wire
        call = parse_completion(await self._body(request), wire)
        self.gateway.doors.check_prompts(call.asks, "prompt")
        visitor = visitor_of(caller, "cmpl", call.priority, call.deadline_seconds)
        renderer = CompletionRenderer(
            call, visitor.request_id, now(), fingerprint_of(self.gateway.plan_hash), self._decode
        )
        return Generation(self.gateway, call, renderer, visitor, request.headers)

    async def embeddings(self, request: Request) -> Response:
        caller = self._caller(request)
        wire = self.gateway.wire
        call = parse_embedding(await self._body(request), wire)
        self.gateway.doors.check_prompts(call.asks, "input")
        visitor = visitor_of(caller, "embd", call.priority, call.deadline_seconds)
        works = (
            self.service.embed(ask, numbered(visitor, number), call.pooling) for number, ask in enumerate(call.asks)
        )
        with self.gateway.doors.inside():
            embedded = await while_connected(request.receive, together(*works))
        self.gateway.metrics.prompt_tokens.inc(sum(entry.num_tokens for entry in embedded))
        return json_response(render_embeddings(call, embedded))

    async def tokenize(self, request: Request) -> Response:
        self._caller(request)
        wire = self.gateway.wire
        call = parse_tokenize(await self._body(request), wire)
        self.gateway.doors.check_prompts([call.ask], "messages" if call.ask.messages else "prompt")
        with self.gateway.doors.inside():
            token_ids = await asyncio.to_thread(self._encode, call.ask)
        return json_response(render_tokenize(call, token_ids, wire, lambda token_id: self._decode([token_id])))

    async def detokenize(self, request: Request) -> Response:
        self._caller(request)
        token_ids = parse_detokenize(await self._body(request), self.gateway.wire)
        with self.gateway.doors.inside():
            text = await asyncio.to_thread(self._decode, token_ids)
        return json_response(render_detokenize(text))

    def _encode(self, ask: Ask) -> list[int]:
        prompts = self.service.prompts
        if ask.messages:
            template: dict[str, Any] = dict(ask.template)
            return list(map(int, prompts.encode_chat(ask.messages, **template)[0]))
        return list(map(int, prompts.encode(ask.prompt, ask.add_special)))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self.service.prompts.tokenizer.decode(token_ids, skip_special=False)

    # -- about the server -------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        self._caller(request)
        return json_response(list_models(self.gateway.wire, self.gateway.created))

    async def model(self, request: Request) -> Response:
        self._caller(request)
        return json_response(get_model(request.path_params["model"], self.gateway.wire, self.gateway.created))

    async def health(self, request: Request) -> Response:
        return json_response(b'{"status":"ok"}')

    async def ready(self, request: Request) -> Response:
        self.gateway.doors.check()
        return json_response(b'{"status":"ready"}')

    async def metrics(self, request: Request) -> Response:
        self._caller(request)
        metrics = self.gateway.metrics
        if not self.gateway.why_not_ready():
            # an engine that is busy, or that has just died, told its counters before
            with contextlib.suppress(TimeoutError, SwitchgearError):
                metrics.plugin_stats = await asyncio.wait_for(self.service.controls.stats(), STATS_SECONDS)
        return Response(metrics.page(), headers={"content-type": CONTENT_TYPE})

    async def plan(self, request: Request) -> Response:
        self._caller(request)
        self.gateway.doors.check()
        return json_response(msgspec.json.encode(self.service.plan.to_json()))

    async def openapi(self, request: Request) -> Response:
        self._caller(request)
        return json_response(self._openapi)

    @cached_property
    def _openapi(self) -> bytes:
        return msgspec.json.encode(openapi(VERSION, self.gateway.wire.model_names, self.gateway.keys.are_needed))

    async def admin(self, request: Request) -> Response:
        if not self._caller(request).is_admin:
            raise forbidden(
                "Commands of plugins need an API key with `admin`, or without a file of keys a request from loopback."
            )
        self.gateway.doors.check()
        arguments = arguments_of(await self._body(request))
        plugin, command = request.path_params["plugin"], request.path_params["command"]
        try:
            answer = await while_connected(request.receive, self.service.controls.run(plugin, command, arguments))
        except ConfigError as error:
            raise not_found(str(error)) from None
        return json_response(msgspec.json.encode(answer))

    # -- of a request -----------------------------------------------------------------------------------------------

    def _caller(self, request: Request) -> Caller:
        host = request.client.host if request.client else ""
        return self.gateway.keys.caller_of(request.headers, host)

    async def _body(self, request: Request) -> bytes:
        with self.gateway.doors.reading():
            return await read_body(request.scope, request.receive, self.gateway.config.max_body_bytes)


def visitor_of(caller: Caller, prefix: str, priority: int, deadline_seconds: float | None) -> Visitor:
    """Who asks, under an id of our own: clients may use theirs twice."""
    deadline = None
    if deadline_seconds is not None:
        deadline = asyncio.get_running_loop().time() + deadline_seconds
    request_id = f"{prefix}-{uuid.uuid4().hex}"
    return Visitor(request_id=request_id, tenant=caller.tenant, priority=priority, deadline=deadline)


def arguments_of(body: bytes) -> dict[str, Any]:
    """The arguments of a plugin's command, by name; none in an empty body."""
    try:
        arguments = _arguments_decoder.decode(body) if body else {}
        # as they go to the engine, which takes no integer beyond 64 bits
        msgspec.msgpack.encode(arguments)
        return arguments
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        raise bad_request("The body must be a JSON object with the command's arguments by name, or empty.") from None


def now() -> int:
    return int(time.time())
