"""The cache folder: what enters it is built in a folder of its own and renamed into place, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelError

ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which a staging folder is taken for the leftover of a killed process."""


def cache_folder(cache: Path | None = None) -> Path:
    """`cache` if given, else `switchgear` below XDG_CACHE_HOME or ~/.cache."""
    if cache is not None:
        return cache
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "switchgear"


@contextmanager
def staging(cache: Path) -> Iterator[Path]:
    """A fresh folder on the cache's file system, gone when the block ends, however it ends.

    A full disk and a cache that cannot be written become ModelErrors.
    """
    try:
        parent = cache / "staging"
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"the disk of {cache} is full; free some space or set XDG_CACHE_HOME to another"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise ModelError(
                f"cannot write to {cache} ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
            ) from error
        raise


def publish(staged: Path, target: Path) -> None:
    """Rename a staged file or folder to `target` in one step.

    A file replaces what is there. Of two folders the first one stays: both were made from the same source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(staged, target)
    except OSError:
        if not (staged.is_dir() and target.is_dir()):
            raise


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.iterdir():
        try:
            is_abandoned = time.time() - folder.stat().st_mtime > ABANDONED_AFTER
        except FileNotFoundError:  # its owner has just finished
            continue
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)
