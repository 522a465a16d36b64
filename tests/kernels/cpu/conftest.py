"""The native library, and a build of it in which the AMX instructions are plain loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu.library import Library, NotBuilt, Unusable, load, native, on_threads_of_torch


@pytest.fixture(scope="session")
def library() -> Library:
    """Whoever could build it and did not is told, so that nobody tests yesterday's kernels, or none."""
    try:
        return native()
    except Unusable as reason:
        if isinstance(reason, NotBuilt) and build.find_compiler():
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Library:
    """Compiled with every warning an error, too."""
    if library.level_name not in ("avx512_bf16", "amx_bf16"):
        pytest.skip("what surrounds the tiles of AMX needs AVX-512 BF16")
    target = tmp_path_factory.mktemp("emulated") / build.LIBRARY
    made = build.build(target, extra_flags=("-DSWITCHGEAR_EMULATE_TILES", *build.WARNINGS))
    return on_threads_of_torch(load(made))


@pytest.fixture(params=["avx2", "avx512_bf16"])
def limited(request: pytest.FixtureRequest, library: Library) -> Library:
    """The library as on processors with so much and no more."""
    limited = library.limited_to(request.param)
    if limited.level_name != request.param:
        pytest.skip(f"this processor has no {request.param}")
    return limited


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
