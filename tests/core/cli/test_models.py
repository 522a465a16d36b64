from pathlib import Path

from switchgear.core.model.catalogue import CATALOGUE
from switchgear.core.testing.tiny_gguf import make_tiny_gguf

from .ended import RunCommand


def test_the_catalogue_is_listed_before_anything_is_here(command: RunCommand, empty_cache: Path) -> None:
    ended = command("models")
    header, line, *others = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert header.split() == ["name", "kind", "size", "here", "converted", "path"]
    assert line.split() == ["smollm2-135m", "catalogue", "98", "MB", "no", "-", str(model_path(empty_cache))]
    assert [other.split()[0] for other in others] == [name for name in CATALOGUE if name != "smollm2-135m"]


def test_a_converted_file_is_listed_with_its_dtypes(command: RunCommand, empty_cache: Path, tmp_path: Path) -> None:
    file = make_tiny_gguf(tmp_path / "tiny.gguf")
    for dtype in ("float32", "bfloat16"):
        assert command("run", "hello", "--model", file, "--dtype", dtype, "--max-tokens", "1").code == 0
    assert f"bfloat16, float32  {file}" in command("models").out
    (model,) = [each for each in command("models", "--json").json if each["kind"] == "gguf"]
    assert (model["path"], model["is_fetched"]) == (str(file), True)
    assert model["converted_dtypes"] == ["bfloat16", "float32"]
    assert model["num_bytes"] == file.stat().st_size


def model_path(cache: Path) -> Path:
    return cache / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
