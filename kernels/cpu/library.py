"""The shared library of native kernels: found, checked against its sources, and given the threads that torch has.

Whether it can serve here is known without PyTorch, by `usable`.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import build

LEVELS = ("none", "avx2", "avx512", "avx512_bf16", "amx_bf16")
"""What of a processor the kernels use, each with all before it."""

OPENMP = ("libgomp", "libiomp5", "libomp")

SIGNATURES = {
    "switchgear_use_threads_of": (None, c_void_p),
    "switchgear_program_new": (c_void_p,),
    "switchgear_program_free": (None, c_void_p),
    "switchgear_program_record": (None, c_void_p),
    "switchgear_program_length": (c_int64, c_void_p),
    "switchgear_program_run": (None, c_void_p, c_int64, c_int64, c_int32),
    "switchgear_level": (c_int32,),
    "switchgear_source_hash": (c_char_p,),
    "switchgear_linear_size": (c_int64, c_int64, c_int64, c_int32),
    "switchgear_linear_pack": (None, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int32, c_int32),
    "switchgear_linear": (None, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int32, c_int32),
    "switchgear_rms_norm": (
        *(None, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64),
        *(c_double, c_int32, c_int32, c_int32, c_int32),
    ),
    "switchgear_rope": (
        *(None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64),
        *(c_int32, c_int32, c_int32),
    ),
    "switchgear_rope_and_cache": (
        *(None, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_void_p),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64),
        *(c_int32, c_int32, c_int32),
    ),
    "switchgear_argmax": (None, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int32, c_int32, c_int32),
    "switchgear_top_k": (
        *(None, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int32, c_int32, c_int32),
    ),
    "switchgear_act_mul": (*(None, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int32, c_int32, c_int32, c_int32),),
    "switchgear_decode_state_size": (c_int64, c_int64),
    "switchgear_decode": (
        *(None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64),
        *(c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_double, c_double),
        *(c_int32, c_int32, c_int32),
    ),
    "switchgear_prefill_tile_size": (c_int64, c_int64, c_int64, c_int32, c_int32),
    "switchgear_prefill_num_queries": (c_int64, c_int64, c_int64, c_int32),
    "switchgear_prefill": (
        *(None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64),
        *(c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64),
        *(c_double, c_double, c_int32, c_int32, c_int32),
    ),
    "switchgear_write_kv": (
        *(None, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int32),
    ),
}
"""Each function's result and arguments."""


class Unusable(Exception):
    """The native kernels cannot be used here; the text says why and what helps."""


class NotBuilt(Unusable):
    """There is no library of these sources; building it helps."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded functions, and what of the processor they may use."""

    functions: ctypes.CDLL
    level: int
    """Index into LEVELS."""

    @property
    def level_name(self) -> str:
        return LEVELS[self.level]

    def limited_to(self, level_name: str) -> Library:
        """The same functions, which leave what is above a level alone."""
        return Library(self.functions, min(self.level, LEVELS.index(level_name)))


@cache
def usable() -> Library:
    """The library beside this file, loaded once, on threads of its own. Raises Unusable."""
    return load(build.FOLDER / build.LIBRARY)


def lack() -> str:
    """Why this machine cannot run the native kernels, with the remedy; empty if it can."""
    try:
        usable()
    except Unusable as reason:
        return str(reason)
    return ""


@cache
def native() -> Library:
    """The same on the threads of PyTorch, as kernels are called. Raises Unusable."""
    return on_threads_of_torch(usable())


def on_threads_of_torch(library: Library) -> Library:
    """The same library, whose work from now on runs on the threads that PyTorch has."""
    library.functions.switchgear_use_threads_of(threads_of_torch())
    return library


def load(path: Path) -> Library:
    """Load a library and check that it was built from the sources that lie here, if any do. Raises Unusable."""
    if not path.is_file():
        raise NotBuilt(f"the native kernels are not built; {remedy()}")
    try:
        functions = ctypes.CDLL(str(path))
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NotBuilt(f"the native kernels cannot be loaded ({error}); {remedy()}") from error
    if build.sources() and functions.switchgear_source_hash().decode() != build.source_hash():
        raise NotBuilt(f"the native kernels were built from other sources than these; {remedy()}")
    level = functions.switchgear_level()
    if not level:
        raise Unusable("the native kernels need a processor with AVX2 and FMA")
    return Library(functions, level)


def remedy() -> str:
    if build.sources():
        return "with a C++ compiler at hand, run: python -m switchgear.kernels.cpu.build"
    return "install switchgear again where there is a C++ compiler"


def threads_of_torch() -> int | None:
    """Address of the function that starts work on torch's threads; None where torch has no OpenMP runtime."""
    import torch

    with open("/proc/self/maps", encoding="utf-8") as lines:
        files = {Path(line.split(maxsplit=5)[5].rstrip()) for line in lines if "/" in line}
    ours = Path(torch.__file__).parent
    runtimes = sorted(
        (file for file in files if file.name.startswith(OPENMP)),
        # others may have loaded one of their own
        key=lambda file: (not file.is_relative_to(ours), not file.parent.name.endswith(".libs"), str(file)),
    )
    for file in runtimes:
        function = getattr(ctypes.CDLL(str(file)), "GOMP_parallel", None)
        if function is not None:
            return ctypes.cast(function, c_void_p).value
    return None
