from pathlib import Path

import pytest
from switchgear.core.cli.admin import message_of, read_argument

from .ended import RunCommand

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttl=2.5", ("ttl", 2.5)),
        ("tenant=blue", ("tenant", "blue")),
        ("dry_run=true", ("dry_run", True)),
        ('names=["a", "b"]', ("names", ["a", "b"])),
        ("text=a=b", ("text", "a=b")),
        ("empty=", ("empty", "")),
    ],
)
def test_arguments_are_read_as_options_are(text: str, expected: tuple[str, object]) -> None:
    assert read_argument(text) == expected


def test_an_argument_without_a_value_is_refused(command: RunCommand) -> None:
    ended = command("admin", "prefix_cache", "reset", "now")
    assert (ended.code, ended.err) == (1, "error: cannot read argument 'now': write key=value\n")


def test_where_no_server_answers_the_address_is_named(command: RunCommand) -> None:
    ended = command("admin", "prefix_cache", "reset", "--url", NOBODY)
    assert ended.code == 1
    assert ended.err.startswith(f"error: no server answers at {NOBODY}/admin/prefix_cache/reset (")


def test_a_url_that_is_none_is_one_sentence(command: RunCommand) -> None:
    ended = command("admin", "prefix_cache", "reset", "--url", "not a url")
    assert ended.code == 1 and ended.err.startswith("error: no server answers at not a url")


def test_a_key_file_that_is_not_there_is_named(command: RunCommand, tmp_path: Path) -> None:
    ended = command("admin", "prefix_cache", "reset", "--api-key-file", tmp_path / "nowhere")
    assert ended.code == 1 and "nowhere" in ended.err


def test_an_error_object_is_told_by_its_sentence_and_anything_else_by_its_status() -> None:
    assert message_of(b'{"error": {"message": "No such command."}}', 404) == "No such command."
    for body in (b"<html>", b"[]", b'{"error": "x"}'):
        assert message_of(body, 502) == "the server answered with status 502 and no reason: is it a switchgear server?"
