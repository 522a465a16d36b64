"""What goes wrong, as OpenAI's clients expect to hear it: a status, one sentence and the field it is about."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...errors import ConfigError, PluginFault, RequestError, SwitchgearError
from ...sampling_params import SamplingParams

LONGEST_WAIT = 120.0
"""Seconds; the openai SDK does not retry at all where it is told to wait for longer."""

NO_RETRY = {"x-should-retry": "false"}
"""For the openai SDK, which would otherwise send some of these again."""


class ApiError(Exception):
    """An answer that is an error, all its parts decided."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        """The field of the body that is wrong, such as `messages[0].role`."""
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON body; all four keys are there, whatever their value."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_request_error", param, code, NO_RETRY)


def unauthorized(message: str) -> ApiError:
    return ApiError(
        401, message, "invalid_request_error", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
    )


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, "permission_error", code="forbidden")


def not_found(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(404, message, "invalid_request_error", param, code)


def model_not_found(model: str) -> ApiError:
    return not_found(
        f"The model `{model}` does not exist; GET /v1/models lists what there is.", "model", "model_not_found"
    )


def method_not_allowed(method: str, allowed: str) -> ApiError:
    """allowed: the methods that there are, separated by commas."""
    message = f"{method} is not allowed here; use {allowed}."
    return ApiError(405, message, "invalid_request_error", code="method_not_allowed", headers={"allow": allowed})


def too_large(message: str) -> ApiError:
    return ApiError(413, message, "invalid_request_error", code="request_too_large", headers=NO_RETRY)


def too_slow(message: str) -> ApiError:
    """The rest of the body may still come, and with it nothing can be done: the connection is closed."""
    headers = {**NO_RETRY, "connection": "close"}
    return ApiError(408, message, "timeout_error", code="request_timeout", headers=headers)


def too_many(message: str, retry_after: float | None = 1.0) -> ApiError:
    """The client may send it again after `retry_after` seconds; never, where it is None."""
    return ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=_retry_headers(retry_after))


def server_error(message: str, code: str | None = None) -> ApiError:
    return ApiError(500, message, "server_error", code=code)


def unavailable(message: str, code: str | None = None, retry_after: float | None = 1.0) -> ApiError:
    return ApiError(503, message, "server_error", code=code, headers=_retry_headers(retry_after))


def _retry_headers(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return dict(NO_RETRY)
    seconds = min(max(seconds, 0.001), LONGEST_WAIT)
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}


def api_error_of(exception: BaseException) -> ApiError:
    """How a client hears of an exception; what nobody foresaw is a 500 that keeps its text to the log."""
    from ...engine.client import EngineDown  # late: no other part of the wire format needs an engine
    from ..ingress import Rejected
    from ..service import DeadlineExceeded

    match exception:
        case ApiError():
            return exception
        case Rejected():
            return _rejected(exception.status, str(exception), exception.retry_after)
        case RequestError() | ConfigError():
            return refused(exception)
        case EngineDown():
            return unavailable(str(exception), "engine_down")
        case DeadlineExceeded():
            return ApiError(408, str(exception), "timeout_error", code="deadline_exceeded", headers=NO_RETRY)
        case PluginFault():
            return server_error(str(exception), "plugin_fault")
        case SwitchgearError():
            return server_error(str(exception), "engine_failure")
        case _:
            name = type(exception).__name__
            return server_error(f"The server failed on this request ({name}); its log says more.", "internal_error")


def _rejected(status: int, message: str, retry_after: float | None) -> ApiError:
    """What a stage of the ingress chain refused, with the status that it chose."""
    if status == 429:
        return too_many(message, retry_after)
    headers = _retry_headers(retry_after) if retry_after is not None or status < 500 else {}
    return ApiError(
        status, message, "server_error" if status >= 500 else "invalid_request_error", None, "rejected", headers
    )


def refused(error: RequestError | ConfigError) -> ApiError:
    """A 400, with the field that the sentence begins with, as those of `SamplingParams` do."""
    sentence = str(error)
    if "max_model_len" in sentence:
        return bad_request(sentence, code="context_length_exceeded")
    word = sentence.partition(" ")[0]
    return bad_request(sentence, word if word in SamplingParams.__dataclass_fields__ else None)
