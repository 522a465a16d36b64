"""The routes of the server, and for each a handler that reads, asks the service and answers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from .. import VERSION
from ..errors import ConfigError, SwitchgearError
from .gateway import Gateway
from .generation import Generation
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
    return Envelope(
        Router(routes, redirect_slashes=False), lambda: gateway.plan_hash, gateway.metrics.count_request
    )


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
        renderer = ChatRenderer(call, visitor.request_id, now(), fingerprint_of(self.gateway.plan_hash))
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
