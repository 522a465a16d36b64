"""What a client hears when something goes wrong."""

from __future__ import annotations

import pytest
from switchgear.core.errors import ConfigError, PluginFault, RequestError, SwitchgearError
from switchgear.core.gateway.openai import errors
from switchgear.core.gateway.openai.errors import ApiError


def test_a_body_has_all_four_keys() -> None:
    assert errors.server_error("broken").body() == {
        "error": {"message": "broken", "type": "server_error", "param": None, "code": None}
    }
    assert errors.bad_request("no", "n", "x").body()["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "n",
        "code": "x",
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.bad_request("x"), 400, None),
        (errors.unauthorized("x"), 401, "invalid_api_key"),
        (errors.forbidden("x"), 403, "forbidden"),
        (errors.not_found("x"), 404, None),
        (errors.model_not_found("x"), 404, "model_not_found"),
        (errors.method_not_allowed("PUT", "POST"), 405, "method_not_allowed"),
        (errors.too_large("x"), 413, "request_too_large"),
        (errors.too_many("x"), 429, "rate_limit_exceeded"),
        (errors.server_error("x"), 500, None),
        (errors.unavailable("x", "engine_down"), 503, "engine_down"),
    ],
)
def test_each_constructor_has_its_status(error: ApiError, status: int, code: str | None) -> None:
    assert (error.status, error.code) == (status, code)
    assert error.message in str(error)


def test_a_retry_is_announced_in_both_units_and_never_later_than_the_sdk_would_wait() -> None:
    assert errors.too_many("x", 1.5).headers == {"retry-after": "2", "retry-after-ms": "1500"}
    assert errors.too_many("x", 3600).headers == {"retry-after": "120", "retry-after-ms": "120000"}
    assert errors.unavailable("x", retry_after=0).headers == {"retry-after": "1", "retry-after-ms": "1"}


def test_what_cannot_be_better_the_second_time_is_not_to_be_sent_again() -> None:
    assert errors.bad_request("x").headers["x-should-retry"] == "false"
    assert errors.too_many("x", None).headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("sentence", "param", "code"),
    [
        ("top_p must be a number from 0 to 1, got 3.", "top_p", None),
        ("the prompt is empty: send at least one token", None, None),
        (
            "the prompt has 9 tokens, and prompt and output together may have 5: shorten it or raise max_model_len",
            None,
            "context_length_exceeded",
        ),
    ],
)
def test_a_refused_request_names_the_field_that_its_sentence_begins_with(
    sentence: str, param: str | None, code: str | None
) -> None:
    error = errors.refused(RequestError(sentence))
    assert (error.status, error.message, error.param, error.code) == (400, sentence, param, code)


def test_exceptions_become_answers() -> None:
    pytest.importorskip("switchgear.core.engine.client")
    from switchgear.core.engine.client import EngineDown
    from switchgear.core.gateway.ingress import Rejected
    from switchgear.core.gateway.service import DeadlineExceeded
    from switchgear.core.records import Reject

    known = errors.bad_request("x")
    assert errors.api_error_of(known) is known
    cases: list[tuple[Exception, int, str | None]] = [
        (RequestError("no"), 400, None),
        (ConfigError("no"), 400, None),
        (EngineDown("killed"), 503, "engine_down"),
        (DeadlineExceeded("late"), 408, "deadline_exceeded"),
        (PluginFault("cache", "enter", "it broke"), 500, "plugin_fault"),
        (SwitchgearError("out of blocks"), 500, "engine_failure"),
        (Rejected(Reject(429, "slowly", 2.0)), 429, "rate_limit_exceeded"),
        (Rejected(Reject(403, "not you")), 403, "rejected"),
        (Rejected(Reject(503, "busy", 2.0)), 503, "rejected"),
    ]
    for exception, status, code in cases:
        error = errors.api_error_of(exception)
        assert (error.status, error.code, error.message) == (status, code, str(exception))
    assert "cache" in errors.api_error_of(PluginFault("cache", "enter", "it broke")).message
    assert errors.api_error_of(Rejected(Reject(503, "busy", 2.0))).headers["retry-after"] == "2"


def test_what_nobody_foresaw_is_not_told_to_the_client() -> None:
    pytest.importorskip("switchgear.core.engine.client")
    error = errors.api_error_of(ValueError("secret"))
    assert error.status == 500
    assert "secret" not in error.message
    assert "ValueError" in error.message
