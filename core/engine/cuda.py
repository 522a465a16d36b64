"""The GPU as NVIDIA's driver describes it. Imports no torch, so that a process which only plans need not either."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
"""Numbers of CUdevice_attribute in cuda.h."""
BUILT_FOR = re.compile(r"^cuda(?:: [\w\[\]]+)? = '([\d.]+)'", re.MULTILINE)
"""In torch/version.py; None in a build for processors only."""


class NoGPU(Exception):
    """Why nothing can be computed on a GPU here."""


@dataclass(frozen=True, slots=True)
class GPU:
    """The first GPU that this process may use."""

    capability: tuple[int, int]
    memory_bytes: int


@cache
def first_gpu() -> GPU:
    """Raises NoGPU with the reason. Makes no context on the device, so it takes none of its memory."""
    if not torch_has_cuda():
        raise NoGPU("this PyTorch was built without CUDA")
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoGPU("there is no NVIDIA driver on this machine") from None
    return described(driver)


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA: read from its files, since importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    file = Path(spec.origin).with_name("version.py")
    return file.is_file() and BUILT_FOR.search(file.read_text(encoding="utf-8")) is not None


def described(driver: Any) -> GPU:
    """driver: the library of the driver. Raises NoGPU."""
    device, number, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()

    def call(name: str, *arguments: Any) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise NoGPU(f"the NVIDIA driver finds no usable GPU ({name} returned {status})")

    def attribute(which: int) -> int:
        call("cuDeviceGetAttribute", ctypes.byref(number), which, device)
        return number.value

    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(number))
    if not number.value:
        raise NoGPU("the NVIDIA driver shows this process no GPU")
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    return GPU((attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)), memory.value)
