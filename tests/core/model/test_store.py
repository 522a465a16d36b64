import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from switchgear.core.errors import ModelError
from switchgear.core.model import catalogue, gguf_convert, store
from switchgear.core.model.catalogue import CatalogueEntry, Wheel
from switchgear.core.model.pull_wheel import wheel_target
from switchgear.core.model.store import installed, resolve
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "tiny.gguf")


def _files_in(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _refuse_to_parse(*args: Any) -> None:
    raise AssertionError("a GGUF was parsed")


def test_directory_is_loaded_where_it_is(tmp_path: Path, cache: Path) -> None:
    directory = make_tiny_model(tmp_path / "model")
    files = resolve(str(directory), "bfloat16", cache=cache)
    assert files.source == files.directory == directory
    assert files.name == str(directory)
    assert not cache.exists()


def test_gguf_is_converted_once_per_dtype(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve(str(source), "float32", cache=cache, progress=False)
    half = resolve(str(source), "bfloat16", cache=cache, progress=False)
    assert first.source == half.source == source
    assert first.directory != half.directory
    assert load_file(half.weights[0])["model.norm.weight"].dtype is torch.bfloat16
    monkeypatch.setattr("switchgear.core.model.gguf_file.read_header", _refuse_to_parse)
    assert resolve(str(source), "float32", cache=cache) == first
    assert resolve(str(source), "bfloat16", cache=cache) == half


def test_changed_gguf_and_changed_conversion_are_converted_anew(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(str(source), "float32", cache=cache, progress=False)
    make_tiny_gguf(source, seed=1)
    second = resolve(str(source), "float32", cache=cache, progress=False)
    assert second.directory != first.directory
    monkeypatch.setattr(store, "CONVERSION", store.CONVERSION + 1)
    assert resolve(str(source), "float32", cache=cache, progress=False).directory != second.directory


def test_catalogue_gguf_is_known_by_its_hash(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = source.read_bytes()
    entry = CatalogueEntry(
        name="tiny",
        file_name="tiny.gguf",
        wheels=(Wheel("tiny", "1.0", "tiny/tiny.gguf", num_bytes=len(content)),),
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        licence="MIT",
        summary="a test",
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    target = wheel_target(entry, cache)
    target.parent.mkdir(parents=True)
    shutil.copy(source, target)
    first = resolve("tiny", "float32", cache=cache, progress=False)
    os.utime(target, (0, 0))
    assert resolve("tiny", "float32", cache=cache, progress=False) == first
    (model,) = [model for model in installed(cache=cache) if model.name == "tiny"]
    assert model.is_fetched and model.converted_dtypes == ("float32",) and model.num_bytes == len(content)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors", "source.json"])
def test_full_disk_while_converting_leaves_nothing(
    source: Path, cache: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open

    def open_full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_full = "w" in mode and path.name == file
        return open_file(Path("/dev/full") if is_full else path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(ModelError, match=r"the disk of .*cache is full; free some space"):
        resolve(str(source), "float32", cache=cache, progress=False)
    assert _files_in(cache) == []


def test_interrupt_while_converting_leaves_nothing(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> Iterator[torch.Tensor]:
        yield torch.zeros(64)
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_convert, "_joined_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve(str(source), "float32", cache=cache, progress=False)
    assert _files_in(cache) == []


def test_broken_gguf_leaves_nothing(source: Path, cache: Path) -> None:
    source.write_bytes(source.read_bytes()[:-2000])
    with pytest.raises(ModelError, match="truncated"):
        resolve(str(source), "float32", cache=cache, progress=False)
    assert _files_in(cache) == []


def test_two_processes_at_once_share_one_conversion(source: Path, cache: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from switchgear.core.model.store import resolve; "
        "print(resolve(sys.argv[1], 'float32', cache=Path(sys.argv[2]), progress=False).directory)"
    )
    command = [sys.executable, "-c", program, str(source), str(cache)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    directories = {child.communicate(timeout=60)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert directories == {str(resolve(str(source), "float32", cache=cache).directory)}
    assert len(list((cache / "converted").iterdir())) == 1
    assert list((cache / "staging").iterdir()) == []


def test_cache_without_room_for_a_folder_is_one_sentence(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", no_space)
    with pytest.raises(ModelError, match="is full"):
        resolve(str(source), "float32", cache=cache, progress=False)


def test_installed_lists_the_catalogue_then_hub_models_then_converted_files(source: Path, cache: Path) -> None:
    listed = installed(cache=cache)
    assert [model.name for model in listed] == list(catalogue.CATALOGUE)
    assert all(model.kind == "catalogue" and not model.is_fetched for model in listed)
    make_tiny_model(cache / "hub" / "owner--tiny-model")
    for dtype in ("float32", "bfloat16"):
        resolve(str(source), dtype, cache=cache, progress=False)
    hub_model, converted = installed(cache=cache)[len(listed) :]
    assert hub_model.name == "owner/tiny-model" and hub_model.kind == "hub" and hub_model.is_fetched
    assert hub_model.num_bytes == sum(file.stat().st_size for file in hub_model.path.iterdir())
    assert converted.name == str(source) and converted.kind == "gguf" and converted.path == source
    assert converted.converted_dtypes == ("bfloat16", "float32")
    source.unlink()
    assert len(installed(cache=cache)) == len(listed) + 1
