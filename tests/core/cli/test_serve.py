import re
from argparse import ArgumentParser
from pathlib import Path

import pytest
from switchgear.core.cli import serve
from switchgear.core.cli.options import config_from
from switchgear.core.cli.serve import OPTIONS, add_options, with_server_options
from switchgear.core.config import Config, ServerConfig
from switchgear.core.errors import ConfigError

from .ended import RunCommand


def config_of(*arguments: str) -> Config:
    parser = ArgumentParser()
    add_options(parser)
    parsed = parser.parse_args(arguments)
    return with_server_options(config_from(parsed), parsed)


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nport = 9000\nhost = "0.0.0.0"\nserved_model_names = ["a"]\n')
    server = config_of(
        "--config", str(file), "--port", "0", "--served-model-name", "b", "--served-model-name", "c"
    ).server
    assert (server.port, server.host, server.served_model_names) == (0, "0.0.0.0", ("b", "c"))


def test_every_option_is_one_of_the_config_and_nothing_is_the_default() -> None:
    assert {name for name, _, _ in OPTIONS} <= set(ServerConfig.__struct_fields__)
    assert config_of().server == ServerConfig()
    assert config_of("--set", "server.tracing=true").server.tracing


def test_a_value_out_of_range_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"\[server\]: .*port"):
        config_of("--port", "70000")


def test_the_help_tells_each_default(command: RunCommand, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("serve", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "(default 8000)" in text and "(default 127.0.0.1)" in text
    assert len(re.findall(r"\(default ", text)) == len(OPTIONS) - 1


def test_what_is_not_installed_is_named_with_the_remedy(command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("msgspec", "no_such_web_framework"))
    ended = command("serve")
    sentence = "the server needs what is not installed here (no_such_web_framework): pip install 'switchgear[server]'"
    assert (ended.code, ended.err) == (1, f"error: {sentence}\n")
