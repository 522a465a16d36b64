from pathlib import Path

from switchgear.core.gateway.keys import Caller, Keys

from .ended import RunCommand


def test_a_new_key_is_printed_once_with_the_line_that_lets_it_in(command: RunCommand, tmp_path: Path) -> None:
    ended = command("keys", "new", "--tenant", "blue", "--admin")
    assert (ended.code, ended.err) == (0, "")
    key, line = (text.partition(":")[2].strip() for text in ended.out.splitlines())
    assert key not in line
    (tmp_path / "keys").write_text(line)
    keys = Keys.load(tmp_path / "keys")
    assert keys.caller_of({"authorization": f"Bearer {key}"}, "203.0.113.9") == Caller("blue", is_admin=True)


def test_a_tenant_that_is_no_name_is_refused(command: RunCommand) -> None:
    ended = command("keys", "new", "--tenant", "two words")
    assert ended.code == 1 and ended.out == ""
    assert ended.err.startswith("error: tenant 'two words' is no name")
