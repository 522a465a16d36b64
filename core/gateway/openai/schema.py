"""The OpenAPI 3.1 document, made of the records that the parsers read and the renderers write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.json import schema_components

from .chat_bodies import ChatChunk, ChatCompletion, ChatRequest
from .common_bodies import ErrorBody
from .completion_bodies import Completion, CompletionRequest
from .embedding_bodies import EmbeddingRequest, Embeddings
from .models import Model, ModelList
from .token_bodies import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

Document = dict[str, Any]

BODIES = (
    ChatRequest,
    ChatCompletion,
    ChatChunk,
    CompletionRequest,
    Completion,
    EmbeddingRequest,
    Embeddings,
    ModelList,
    Model,
    TokenizeRequest,
    TokenizeAnswer,
    DetokenizeRequest,
    DetokenizeAnswer,
    ErrorBody,
)

ERRORS = {
    400: "The body or one of its fields is wrong; `param` names the field.",
    401: "The API key is missing or unknown.",
    403: "The API key does not allow this.",
    404: "There is no such model, plugin or command.",
    408: "The answer was not done before the request's deadline, or the body came too slowly.",
    413: "The body is too large.",
    429: "Too much at once; the headers say when to try again.",
    500: "The server failed on this request.",
    503: "No engine can answer now: it loads, restarts or shuts down.",
}
OF_EVERY_PATH = (401, 500)
OF_A_BODY = (400, 401, 403, 404, 408, 413, 429, 500, 503)

HEADERS = {
    "x-request-id": {"schema": {"type": "string"}, "description": "The one that was sent, or a new one."},
    "x-switchgear-plan": {"schema": {"type": "string"}, "description": "Hash of the effective plan."},
}
RETRY_HEADERS = {
    "retry-after": {"schema": {"type": "string"}, "description": "Seconds."},
    "retry-after-ms": {"schema": {"type": "string"}, "description": "Milliseconds."},
}


def openapi(version: str, model_names: Sequence[str] = (), needs_key: bool = False) -> Document:
    """The document of one server. model_names: those that it serves; needs_key: whether it asks for an API key."""
    document: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "switchgear",
            "version": version,
            "description": "OpenAI's API, and what the engine adds. Unknown fields are taken and have no effect.",
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(model_names)},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in ("/health", "/ready"):
            document["paths"][path]["get"]["security"] = []
    return document


def _schemas(model_names: Sequence[str]) -> Document:
    _, schemas = schema_components(BODIES, ref_template="#/components/schemas/{name}")
    if model_names:
        requests = (ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest)
        for request in requests:
            model = schemas[request.__name__]["properties"]["model"]
            model["enum"] = [*model_names, None] if "default" in model else list(model_names)
    return schemas


def _paths() -> Document:
    return {
        "/v1/chat/completions": {
            "post": _post("createChatCompletion", "Answer a conversation.", ChatRequest, ChatCompletion, ChatChunk)
        },
        "/v1/completions": {
            "post": _post("createCompletion", "Go on with a prompt.", CompletionRequest, Completion, Completion)
        },
        "/v1/embeddings": {"post": _post("createEmbedding", "Turn texts into vectors.", EmbeddingRequest, Embeddings)},
        "/v1/models": {"get": _get("listModels", "What is served here.", _json(_ref(ModelList)))},
        "/v1/models/{model}": {
            "get": _get("getModel", "One of them.", _json(_ref(Model)), errors=(404,)),
            "parameters": [_path_parameter("model")],
        },
        "/tokenize": {"post": _post("tokenize", "Token ids of a text.", TokenizeRequest, TokenizeAnswer)},
        "/detokenize": {"post": _post("detokenize", "The text of token ids.", DetokenizeRequest, DetokenizeAnswer)},
        "/health": {"get": _get("health", "Whether the server runs.", _json({"type": "object"}), errors=(503,))},
        "/ready": {"get": _get("ready", "Whether requests would be served.", _json({"type": "object"}), errors=(503,))},
        "/metrics": {
            "get": _get("metrics", "Counters, for Prometheus.", {"text/plain": {"schema": {"type": "string"}}})
        },
        "/plan": {"get": _get("plan", "The effective plan.", _json({"type": "object"}), errors=(503,))},
        "/openapi.json": {"get": _get("openapi", "This document.", _json({"type": "object"}))},
        "/admin/{plugin}/{command}": {
            "post": {
                "operationId": "admin",
                "summary": "Run a command of a plugin; the body has its arguments by name.",
                "requestBody": {"content": _json({"type": "object"})},
                "responses": {"200": _response("What the command returned.", _json({})), **_errors(OF_A_BODY)},
            },
            "parameters": [_path_parameter("plugin"), _path_parameter("command")],
        },
    }


def _post(operation: str, summary: str, request: type, answer: type, event: type | None = None) -> Document:
    """event: what each `data:` line of a streamed answer holds."""
    content = _json(_ref(answer))
    description = "The answer."
    if event is not None:
        content["text/event-stream"] = {}
        description = f"The answer; with `stream` one {event.__name__} for each `data:` line, then `data: [DONE]`."
    return {
        "operationId": operation,
        "summary": summary,
        "requestBody": {"required": True, "content": _json(_ref(request))},
        "responses": {"200": _response(description, content), **_errors(OF_A_BODY)},
    }


def _get(operation: str, summary: str, content: Document, errors: tuple[int, ...] = ()) -> Document:
    responses = {"200": _response(summary, content), **_errors(sorted({*errors, *OF_EVERY_PATH}))}
    return {"operationId": operation, "summary": summary, "responses": responses}


def _errors(statuses: Iterable[int]) -> Document:
    responses = {str(status): _response(ERRORS[status], _json(_ref(ErrorBody))) for status in statuses}
    for status in {"429", "503"} & responses.keys():
        responses[status]["headers"] = {**HEADERS, **RETRY_HEADERS}
    return responses


def _response(description: str, content: Document) -> Document:
    return {"description": description, "headers": HEADERS, "content": content}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}


def _ref(body: type) -> Document:
    return {"$ref": f"#/components/schemas/{body.__name__}"}


def _path_parameter(name: str) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
