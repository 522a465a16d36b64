"""A model by its Hugging Face id: the safetensors, JSON and tokenizer files of its repository, into the cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import ModelError
from .cache import publish, staging
from .files import read_directory

WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer*"]
UNWANTED = ["*/*"]
"""Files in folders of a repository are other formats of the same model."""


def hub_target(name: str, cache: Path) -> Path:
    """Where the model's directory lies once it is fetched."""
    return cache / "hub" / name.replace("/", "--")


def fetch_snapshot(name: str, cache: Path, *, progress: bool, endpoint: str | None = None) -> Path:
    """The directory of the model `owner/name` in the cache, fetched if it is not there."""
    target = hub_target(name, cache)
    if not target.is_dir():
        with staging(cache) as folder:
            staged = folder / "model"
            _download(name, staged, progress, endpoint)
            shutil.rmtree(staged / ".cache", ignore_errors=True)
            read_directory(name, staged, staged)
            publish(staged, target)
    return target


def _download(name: str, folder: Path, progress: bool, endpoint: str | None) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        snapshot_download(
            name,
            local_dir=folder,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
            endpoint=endpoint,
            tqdm_class=tqdm if progress else _NoBar,
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{name} asks for its licence to be accepted; do so on its page, then run: hf auth login"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"the hub has no model {name!r} that you may read; check the id or run: hf auth login"
        ) from error
    except Exception as error:  # its HTTP library's errors have no stable base class
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ModelError(
            f"the hub did not deliver {name} ({_first_sentence(error)}); "
            "check the network and try again, or give a local directory"
        ) from error


class _NoBar(tqdm):  # type: ignore[misc]  # tqdm has no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _first_sentence(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0]
    return line.partition(". ")[0].rstrip(".")
