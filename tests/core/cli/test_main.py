import os
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from switchgear.core import VERSION
from switchgear.core.cli import main as main_module
from switchgear.core.cli.command import Command
from switchgear.core.cli.main import COMMANDS, main
from switchgear.core.errors import ModelError
from switchgear.core.testing.tiny import make_tiny_model

PROGRAM = [sys.executable, "-c", "import sys; from switchgear.core.cli.main import main; sys.exit(main())"]
LONG = ["--max-tokens", "4000", "--ignore-eos", "--temperature", "0"]


def no_options(parser: ArgumentParser) -> None:
    pass


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Exit code and standard error of a command that raises `error`, called with `arguments`."""

    def end(error: BaseException, *arguments: str) -> tuple[int, str]:
        def run(_: Namespace) -> int:
            raise error

        monkeypatch.setattr(main_module, "COMMANDS", (Command("fail", "Fails.", no_options, run),))
        return main([*arguments]), capsys.readouterr().err

    return end


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes seconds for 4000 tokens, so that there is time to interrupt it."""
    return make_tiny_model(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)


def test_a_failure_on_purpose_is_one_sentence(ends: Callable[..., tuple[int, str]]) -> None:
    assert ends(ModelError("no model\n  here; pull one"), "fail") == (1, "error: no model here; pull one\n")


def test_a_fault_of_ours_is_one_sentence_that_names_debug(ends: Callable[..., tuple[int, str]]) -> None:
    sentence = "internal error: ZeroDivisionError: by\tzero; run again with --debug for the traceback\n"
    assert ends(ZeroDivisionError("by\tzero"), "fail") == (1, sentence.replace("\t", " "))


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    ends: Callable[..., tuple[int, str]], arguments: list[str]
) -> None:
    for error, sentence in (
        (ModelError("no model"), "error: no model"),
        (ZeroDivisionError(), "internal error: ZeroDivisionError:"),
    ):
        code, text = ends(error, *arguments)
        assert code == 1
        assert text.startswith("Traceback (most recent call last)")
        assert text.splitlines()[-1] == sentence


def test_an_interrupt_is_silent(ends: Callable[..., tuple[int, str]]) -> None:
    assert ends(KeyboardInterrupt(), "fail") == (130, "")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["plan", "--nonsense"], ["plan", "--recip", "all_off"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: switchgear")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"switchgear {VERSION}\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command.name, "--help"])
    assert ended.value.code == 0
    assert " ".join(command.summary.split()) in " ".join(capsys.readouterr().out.split())


def test_help_loads_nothing_heavy() -> None:
    """A library that takes a tenth of a second to import is noticed at every command."""
    heavy = ("torch", "numpy", "transformers", "tokenizers", "starlette", "uvicorn", "zmq", "matplotlib", "scipy")
    code = (
        "import contextlib, io, sys\n"
        "from switchgear.core.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_a_closed_pipe_is_silent(empty_cache: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        ended = subprocess.run([*PROGRAM, "models"], stdout=output, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_what_a_terminal_cannot_show_is_replaced(tiny_model: Path) -> None:
    ended = subprocess.run(
        [*PROGRAM, "run", "caf\u00e9", "--model", str(tiny_model), "--max-tokens", "60", "--temperature", "0"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"?" in ended.stdout


def test_broken_text_on_standard_input_is_refused(tiny_model: Path) -> None:
    ended = subprocess.run([*PROGRAM, "run", "-", "--model", str(tiny_model)], input=b"\xff", capture_output=True)
    assert ended.returncode == 1
    assert ended.stderr == b"error: the text has a lone surrogate at character 17; send valid Unicode\n"


def test_ctrl_c_ends_an_answer_without_a_traceback(long_model: Path) -> None:
    arguments = [*PROGRAM, "run", "hello", "--model", str(long_model), *LONG]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=20) == 130
        assert program.stdout.read().endswith(b"\n")
        assert program.stderr.read() == b""


def test_the_program_is_installed_under_its_name() -> None:
    program = Path(sys.executable).with_name("switchgear")
    ended = subprocess.run([program, "--version"], capture_output=True, text=True)
    assert ended.stdout == f"switchgear {VERSION}\n"
