"""The models on this machine: `resolve` one to files that can be loaded, list what is `installed`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .cache import cache_folder, publish, staging
from .catalogue import CATALOGUE
from .files import ModelFiles, read_directory
from .pull import fetch, pull
from .pull_wheel import is_fetched, wheel_target

__all__ = ["InstalledModel", "ModelFiles", "installed", "pull", "resolve"]

CONVERSION = 2
"""Raised when the conversion of a GGUF makes different files, so that older ones in a cache are not used."""


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One line of `switchgear models`."""

    name: str
    kind: Literal["catalogue", "hub", "gguf"]
    path: Path
    """The model's own file or directory, or where it will be."""
    num_bytes: int
    """Size of the model itself, without conversions."""
    is_fetched: bool
    summary: str = ""
    converted_dtypes: tuple[str, ...] = ()
    """Dtypes in which a GGUF is ready to load."""


def resolve(name: str, dtype: str, *, cache: Path | None = None, progress: bool = True) -> ModelFiles:
    """Files to load a model from, fetched and converted first where they are not there yet.

    dtype: what a GGUF is converted to, once: "float32", "bfloat16", "float16" or "float64".
    """
    source = fetch(name, cache=cache, progress=progress)
    directory = source if source.is_dir() else _converted(name, source, dtype, cache_folder(cache), progress)
    return read_directory(name, source, directory)


def installed(*, cache: Path | None = None) -> list[InstalledModel]:
    """The catalogue, fetched or not, then models from the hub, then local GGUF files that were converted."""
    folder = cache_folder(cache)
    dtypes: dict[tuple[str, str], list[str]] = {}
    for note in sorted((folder / "converted").glob("*/source.json")):
        origin = json.loads(note.read_text(encoding="utf-8"))
        if origin["conversion"] == CONVERSION:
            dtypes.setdefault((origin["name"], origin["source"]), []).append(origin["dtype"])
    models = []
    for entry in CATALOGUE.values():
        path = wheel_target(entry, folder)
        converted = tuple(dtypes.pop((entry.name, str(path)), ()))
        models.append(
            InstalledModel(
                entry.name, "catalogue", path, entry.num_bytes, is_fetched(entry, folder), entry.summary, converted
            )
        )
    for path in sorted((folder / "hub").glob("*--*")):
        num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        models.append(InstalledModel(path.name.replace("--", "/", 1), "hub", path, num_bytes, True))
    for (name, source), converted_dtypes in dtypes.items():
        path = Path(source)
        if path.is_file():
            num_bytes = path.stat().st_size
            models.append(InstalledModel(name, "gguf", path, num_bytes, True, converted_dtypes=tuple(converted_dtypes)))
    return models


def _converted(name: str, source: Path, dtype: str, cache: Path, progress: bool) -> Path:
    """The converted copy of a GGUF, made if it is not there."""
    key = hashlib.sha256(f"{_identity(name, source)} {dtype} {CONVERSION}".encode()).hexdigest()[:16]
    target = cache / "converted" / f"{source.stem}.{dtype}.{key}"
    if not target.is_dir():
        from .gguf_convert import convert_gguf

        with staging(cache) as folder:
            staged = folder / target.name
            staged.mkdir()
            convert_gguf(source, staged, dtype, progress=progress)
            note = {"name": name, "source": str(source), "dtype": dtype, "conversion": CONVERSION}
            (staged / "source.json").write_text(json.dumps(note), encoding="utf-8")
            publish(staged, target)
    return target


def _identity(name: str, source: Path) -> str:
    """What the file's content is: its verified hash, or for a local file what changes when it is replaced."""
    if name in CATALOGUE:
        return CATALOGUE[name].sha256
    status = source.stat()
    return f"{source.resolve()} {status.st_size} {status.st_mtime_ns}"
