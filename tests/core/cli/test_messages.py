import logging

import pytest
from switchgear.core.cli.messages import Messages
from switchgear.core.errors import RequestError

logger = logging.getLogger("switchgear.core.somewhere")


def log_fault(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        logger.error("%s", error, exc_info=error)


def test_what_ended_the_command_is_told_once_although_it_was_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages(debug=False) as messages:
        log_fault("the cache failed")
        log_fault("the guard\n failed")
        log_fault("the cache failed")
        messages.tell_failure(RequestError("the guard\n failed"))
    assert capsys.readouterr().err == "warning: the cache failed\nerror: the guard failed\n"


def test_what_was_logged_on_the_way_to_success_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages(debug=False):
        log_fault("the cache failed")
        logger.info("all is well")
    assert capsys.readouterr().err == "warning: the cache failed\n"


def test_debug_shows_where_a_logged_fault_arose(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages(debug=True):
        log_fault("the cache failed")
    text = capsys.readouterr().err
    assert "in log_fault" in text and text.endswith("warning: the cache failed\n")


def test_a_command_that_goes_on_tells_what_is_logged_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages(debug=False) as messages:
        log_fault("before")
        messages.tell_at_once()
        log_fault("after\n it")
        assert capsys.readouterr().err == "warning: before\nwarning: after it\n"
    assert capsys.readouterr().err == ""


def test_nothing_stays_behind_in_the_logger() -> None:
    root = logging.getLogger("switchgear")
    before = (list(root.handlers), root.propagate)
    with Messages(debug=False):
        pass
    assert (root.handlers, root.propagate) == before
