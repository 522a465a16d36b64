from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.gateway.keys import Caller, Keys, line_of, new_key
from switchgear.core.gateway.openai.errors import ApiError

REMOTE = "203.0.113.9"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def write(folder: Path, text: str) -> Path:
    file = folder / "keys"
    file.write_text(text)
    return file


def test_a_key_gives_the_tenant_of_its_line(tmp_path: Path) -> None:
    one, two = new_key(), new_key()
    keys = Keys.load(
        write(tmp_path, f"# our clients\n\n{line_of(one, 'blue')}\n  {line_of(two, 'ops', True)}  # night shift\n")
    )
    assert keys.are_needed
    assert keys.caller_of(bearer(one), REMOTE) == Caller("blue")
    assert keys.caller_of(bearer(two), REMOTE) == Caller("ops", is_admin=True)
    assert keys.caller_of({"authorization": f"bearer  {one} "}, REMOTE) == Caller("blue")


def test_the_mark_that_some_editors_put_in_front_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    key = new_key()
    keys = Keys.load(write(tmp_path, f"\ufeff{line_of(key, 'blue')}\r\n"))
    assert keys.caller_of(bearer(key), REMOTE) == Caller("blue")


def test_loopback_alone_administers_nothing_where_there_are_keys(tmp_path: Path) -> None:
    key = new_key()
    keys = Keys.load(write(tmp_path, line_of(key, "blue")))
    assert not keys.caller_of(bearer(key), "127.0.0.1").is_admin


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": ""}, {"authorization": "Bearer "}, {"authorization": "Basic x"}, bearer("sk-wrong")],
)
def test_no_key_and_an_unknown_one_are_401(tmp_path: Path, headers: dict[str, str]) -> None:
    keys = Keys.load(write(tmp_path, line_of(new_key(), "blue")))
    with pytest.raises(ApiError, match="API key") as error:
        keys.caller_of(headers, "127.0.0.1")
    assert error.value.status == 401


@pytest.mark.parametrize(
    ("host", "headers", "is_admin"),
    [
        ("127.0.0.1", {}, True),
        ("127.8.9.10", {}, True),
        ("::1", {}, True),
        (REMOTE, {}, False),
        ("", {}, False),
        ("127.0.0.1", {"origin": "https://example.org"}, False),
    ],
)
def test_without_keys_only_this_machine_administers_and_no_page_in_its_browser(
    host: str, headers: dict[str, str], is_admin: bool
) -> None:
    assert Keys({}).caller_of(headers, host) == Caller("", is_admin)


def test_the_file_gives_no_key_away(tmp_path: Path) -> None:
    key = new_key()
    assert len(key) > 50 and key != new_key()
    assert key not in line_of(key, "blue")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("sk-switchgear-abc blue", "line 1 of .* is no API key"),
        (f"sha256:{'0' * 64}", "line 1 of"),
        (f"\nsha256:{'0' * 64} blue chief", "line 2 of"),
        (f"sha256:{'0' * 64} blue\nsha256:{'0' * 64} red", "line 2 of .* repeats"),
        ("# nothing\n", "holds no API keys"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_line(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Keys.load(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the API keys in .*nowhere"):
        Keys.load(tmp_path / "nowhere")


@pytest.mark.parametrize("tenant", ["", "two words", "a" * 65, "caf\u00e9", "x#y"])
def test_a_tenant_that_a_line_cannot_hold_is_refused(tenant: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        line_of(new_key(), tenant)
