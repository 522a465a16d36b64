from pathlib import Path

from switchgear.core.testing.tiny_gguf import make_tiny_gguf

from .ended import RunCommand


def test_the_place_of_a_model_is_printed(command: RunCommand, tiny_model: Path) -> None:
    ended = command("pull", tiny_model)
    assert (ended.code, ended.out, ended.err) == (0, f"{tiny_model}\n", "")


def test_what_is_not_there_is_one_sentence(command: RunCommand, empty_cache: Path) -> None:
    ended = command("pull", "smolm2-135m")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: unknown model 'smolm2-135m'; did you mean 'smollm2-135m'?")


def test_a_truncated_file_is_one_sentence(command: RunCommand, tmp_path: Path) -> None:
    file = make_tiny_gguf(tmp_path / "tiny.gguf")
    with file.open("r+b") as content:
        content.truncate(1000)
    ended = command("pull", file)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("error: ") and str(file) in ended.err
