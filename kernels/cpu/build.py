"""Compiles the native kernels into one shared library beside their sources: `python -m switchgear.kernels.cpu.build`.

Also the build step of setuptools, which loads this file by itself, so it imports nothing of the package. The library
has a plain C ABI and is linked against neither Python nor torch: one build serves every version of both.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = "_native.abi3.so"
COMPILERS = ("c++", "g++", "clang++")

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")
WITHOUT_RUNTIME = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")
"""What would need the C++ library, which may be absent where the wheel is installed."""
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
"""For who works on the sources; the last two are off because GCC 12 finds them in its own AVX-512 intrinsics."""
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
AVX512_BF16 = (*AVX512, "-mavx512bf16")
FLAGS_OF = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": AVX512_BF16,
    "amx": (*AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
}
"""What of the processor a file may use, by the end of its name; nothing beyond x86-64 without one of these."""


class BuildError(Exception):
    """The library cannot be built here; the text says why."""


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.cpp"))


def source_hash() -> str:
    """16 hex digits over the sources and the flags that they are compiled with."""
    digest = hashlib.sha256(
        repr([FLAGS, WITHOUT_RUNTIME, sorted((path.name, flags_of(path)) for path in sources())]).encode()
    )
    for path in sorted([*sources(), *FOLDER.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def flags_of(source: Path) -> Sequence[str]:
    return FLAGS_OF.get(source.stem.rpartition("_")[2], ())


def build(target: Path, *, extra_flags: Sequence[str] = ()) -> Path:
    """Compile and link into `target`, which is replaced whole. Raises BuildError."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BuildError(f"there are no native kernels for {platform.system()} on {platform.machine()}")
    compiler = find_compiler()
    if not compiler:
        raise BuildError(f"there is no C++ compiler: none of {', '.join(COMPILERS)} is on the path")
    flags = [*FLAGS, *WITHOUT_RUNTIME, f'-DSWITCHGEAR_SOURCE_HASH="{source_hash()}"', *extra_flags]
    with tempfile.TemporaryDirectory() as directory:
        objects = [str(Path(directory) / f"{source.stem}.o") for source in sources()]
        commands = [
            [*compiler, *flags, *flags_of(source), "-c", str(source), "-o", made]
            for source, made in zip(sources(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        made = f"{target}.{os.getpid()}"
        run([*compiler, "-shared", "-Wl,--as-needed", "-static-libgcc", *objects, "-lm", "-o", made])
        os.replace(made, target)
    return target


def find_compiler() -> Sequence[str]:
    """The command that `CXX` names, which may have options, or the first compiler on the path; empty without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    return named or list(filter(None, map(shutil.which, COMPILERS)))[:1]


def run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise BuildError("\n".join([f"the C++ compiler failed: {' '.join(command)}", *done.stderr.splitlines()[:20]]))


if __name__ == "__main__":
    try:
        print(build(FOLDER / LIBRARY))
    except BuildError as error:
        sys.exit(f"switchgear: {error}")
