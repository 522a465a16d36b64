from pathlib import Path

import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model import pull as pull_module
from switchgear.core.model.pull import fetch, pull
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def test_local_directory_and_gguf_are_their_own_source(tmp_path: Path) -> None:
    directory, file = make_tiny_model(tmp_path / "model"), make_tiny_gguf(tmp_path / "model.gguf")
    assert pull(str(directory), cache=tmp_path / "cache") == directory
    assert pull(str(file), cache=tmp_path / "cache") == file
    assert not (tmp_path / "cache").exists()


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_model(tmp_path / "some" / "model")
    monkeypatch.chdir(tmp_path)
    assert fetch("some/model") == tmp_path / "some" / "model"


def test_pull_reads_what_it_is_given(tmp_path: Path) -> None:
    directory, file = make_tiny_model(tmp_path / "model"), make_tiny_gguf(tmp_path / "model.gguf")
    (directory / "config.json").unlink()
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"has no config\.json"):
        pull(str(directory))
    with pytest.raises(ModelError, match="truncated or not a GGUF file"):
        pull(str(file))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smollm2", "unknown model 'smollm2'; did you mean 'smollm2-135m'?.*catalogue"),
        ("nonsense", r"unknown model 'nonsense'; use a name of the catalogue \(.*smollm2-135m.*\)"),
        ("", "unknown model ''"),
        ("./model", "./model does not exist; check the path"),
        ("models/tiny.gguf", "models/tiny.gguf does not exist; check the path"),
        (__file__, r"test_pull.py is not a \.gguf file"),
    ],
)
def test_unknown_names_are_explained(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=reason):
        fetch(name, cache=tmp_path)


def test_an_id_with_an_owner_goes_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(name: str, cache: Path, *, progress: bool) -> Path:
        return cache / "asked for" / name

    monkeypatch.setattr(pull_module, "fetch_snapshot", record)
    assert fetch("owner/tiny", cache=tmp_path) == tmp_path / "asked for" / "owner" / "tiny"
