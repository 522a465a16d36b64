import io
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.cli.chat import Chat
from switchgear.core.cli.messages import Messages
from switchgear.core.errors import RequestError
from switchgear.core.testing.tiny import make_tiny_model

from .ended import Ended, RunCommand

PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
GREEDY = ("--temperature", "0", "--max-tokens", "16", "--ignore-eos", "--dtype", "float32")
PROGRAM = [sys.executable, "-c", "import sys; from switchgear.core.cli.main import main; sys.exit(main())"]

Talk = Callable[..., Ended]


@pytest.fixture
def talk(command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """The chat command with these lines on standard input."""

    def run(model: Path, *lines: str) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return command("chat", "--model", model, *GREEDY)

    return run


def chat_with(model: Path, params: SamplingParams = PARAMS, max_model_len: int | None = None) -> Chat:
    llm = LLM(str(model), dtype="float32", plugins={}, max_model_len=max_model_len)
    return Chat(llm, params, Messages(debug=False))


def conversation(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]


def test_each_answer_has_seen_the_whole_conversation(talk: Talk, tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), dtype="float32", plugins={})
    first = llm.chat(conversation("one"), PARAMS)[0].text
    second = llm.chat(conversation("one", first, "two"), PARAMS)[0].text
    ended = talk(tiny_model, "one", "", "two")
    assert (ended.code, ended.out) == (0, f"{first}\n{second}\n")
    assert ended.err == "(the answer was cut after 16 tokens)\n" * 2


def test_reset_forgets_and_quit_ends(talk: Talk, tiny_model: Path) -> None:
    ended = talk(tiny_model, "one", "/reset", "one", "/quit", "one")
    answers = ended.out.split("\n")
    assert answers[0] == answers[1] and answers[2:] == [""]
    assert "(the conversation is forgotten)" in ended.err


def test_an_unknown_command_is_no_message(talk: Talk, tiny_model: Path) -> None:
    ended = talk(tiny_model, "/rest", "/quit")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("error: unknown command /rest: /reset forgets the conversation")


def test_what_only_starts_with_a_slash_is_a_message(talk: Talk, tiny_model: Path) -> None:
    assert talk(tiny_model, "/etc/hosts is a file").out.strip()


def test_a_message_that_cannot_be_served_leaves_the_conversation(talk: Talk, tiny_model: Path) -> None:
    plain = talk(tiny_model, "one", "two")
    ended = talk(tiny_model, "one", "word " * 600, "two")
    assert (ended.code, ended.out) == (0, plain.out)
    (error,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "tokens, and prompt and output together may have 512" in error


def test_the_oldest_turns_are_dropped_when_the_context_is_full(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_with(tiny_model, max_model_len=128)
    for message in ("first", "second", "third"):
        chat.answer(message)
    before = chat.history
    while chat.history[0]["content"] == "first":
        before = chat.history
        chat.answer("again")
    assert chat.history[:-2] == before[2:]
    num_turns = len(before) // 2
    notice = f"(the conversation no longer fits 128 tokens: dropped the oldest 1 of its {num_turns} turns)\n"
    assert capsys.readouterr().err.count(notice) == 1


def test_an_answer_takes_what_room_there_is(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = chat_with(tiny_model, SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True), max_model_len=64)
    chat.answer("hello")
    room = 64 - chat.llm.num_tokens(conversation("hello"))
    assert capsys.readouterr().err == f"(the answer was cut after {room} tokens)\n"


def test_a_message_that_never_fits_drops_nothing(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = chat_with(tiny_model, max_model_len=128)
    chat.answer("first")
    before = chat.history
    with pytest.raises(RequestError, match="shorten the prompt"):
        chat.answer("word " * 200)
    assert chat.history is before
    assert "dropped" not in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(io.StringIO):
        """Presses Ctrl-C as soon as it has read enough."""

        is_reading = True

        def write(self, text: str) -> int:
            written = super().write(text)
            if self.is_reading and self.tell() > 10:
                self.is_reading = False
                signal.raise_signal(signal.SIGINT)
            return written

    chat = chat_with(tiny_model, SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    screen = Impatient()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", screen)
        chat.answer("hello")
    answer = screen.getvalue().removesuffix("\n")
    assert 10 < len(answer) < 40
    assert chat.history == conversation("hello", answer)
    assert chat.llm.audit() == []


def test_a_stopped_answer_is_part_of_the_conversation_in_the_program(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, max_position_embeddings=4096)
    arguments = [*PROGRAM, "chat", "--model", str(model), "--max-tokens", "3000", "--ignore-eos", "--temperature", "0"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None and program.stderr is not None
        program.stdin.write(b"hello\n")
        program.stdin.flush()
        program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        output, errors = program.communicate(b"/reset\n", timeout=20)
    assert (program.returncode, errors) == (0, b"(the conversation is forgotten)\n")
    assert output.endswith(b"\n")


def test_a_model_without_a_chat_template_is_refused(talk: Talk, tiny_model: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(tiny_model, tmp_path / "plain")
    (plain / "tokenizer_config.json").unlink()
    ended = talk(plain, "hello")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"error: model {plain} has no chat template: use `switchgear run`, or a chat model\n"
