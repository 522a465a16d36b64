"""Recorded native work: run again it computes anew, in order, whatever threads there are."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from switchgear.core.model import ops
from switchgear.kernels.cpu.act_mul import act_mul
from switchgear.kernels.cpu.library import Library
from switchgear.kernels.cpu.linear import linear, pack
from switchgear.kernels.cpu.program import Program
from switchgear.kernels.cpu.rms_norm import rms_norm

pytestmark = pytest.mark.usefixtures("library")


class Chain:
    """Feed-forwards one behind the other, each step of which reads what the one before wrote."""

    def __init__(self, num_rows: int, depth: int = 6, size: int = 96) -> None:
        generator = torch.Generator().manual_seed(num_rows)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.x = random(num_rows, size)
        self.norm = 1 + random(size) / 10
        self.weights = [(random(4 * size, size) / 10, random(size, 2 * size) / 10) for _ in range(depth)]
        self.packed = [(pack(up), pack(down)) for up, down in self.weights]
        self.kept: list[torch.Tensor] = []

    def native(self) -> torch.Tensor:
        x = self.x
        for up, down in self.packed:
            normed, _ = rms_norm(x, self.norm, 1e-5)
            between = linear(normed, up)
            gated = act_mul(between, "silu")
            x = linear(gated, down)
            self.kept += [normed, between, gated, x]
        return x

    def plain(self) -> torch.Tensor:
        x = self.x
        for up, down in self.weights:
            normed, _ = ops.rms_norm(x, self.norm, 1e-5)
            x = ops.act_mul(normed @ up.T, "silu") @ down.T
        return x


def recorded(chain: Chain) -> tuple[Program, torch.Tensor]:
    program = Program()
    with program.recording():
        output = chain.native()
    return program, output


@pytest.fixture(params=[1, 2, 5])
def _team(request: pytest.FixtureRequest) -> Iterator[None]:
    """More threads than cores too: then one that waits gives its core to the one it waits for."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_team")
@pytest.mark.parametrize("num_rows", [1, 3, 40, 300])
def test_run_again_it_computes_from_what_is_there_now(num_rows: int) -> None:
    chain = Chain(num_rows)
    program, output = recorded(chain)
    assert len(program) == 4 * len(chain.weights)
    torch.testing.assert_close(output, chain.plain())
    for seed in range(20):
        chain.x.copy_(torch.randn(chain.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
        output.fill_(torch.nan)
        program.run(0, len(program))
        assert torch.equal(output, chain.native())


def test_a_part_of_it_can_be_run() -> None:
    chain = Chain(2)
    program, output = recorded(chain)
    chain.kept[3].fill_(0.5)
    program.run(4, len(program))
    part = Chain(2)
    part.x, part.packed = chain.kept[3], chain.packed[1:]
    assert torch.equal(output, part.native())
    program.run(3, 3)


def test_only_what_the_recording_thread_does_is_in_it() -> None:
    chain, other = Chain(1), Chain(1)
    program = Program()
    with program.recording():
        thread = threading.Thread(target=other.native)
        thread.start()
        thread.join()
        rms_norm(chain.x, chain.norm, 1e-5)
    other.native()
    assert len(program) == 1


def test_what_fails_while_it_is_recorded_ends_the_recording() -> None:
    chain, program = Chain(1), Program()
    with pytest.raises(ZeroDivisionError), program.recording():
        rms_norm(chain.x, chain.norm, 1e-5)
        _ = 1 / 0
    chain.native()
    assert len(program) == 1


def test_nothing_is_recorded_of_no_rows() -> None:
    chain, program = Chain(1), Program()
    with program.recording():
        linear(chain.x[:0], chain.packed[0][0])
        act_mul(chain.x[:0], "silu")
    assert len(program) == 0


def test_a_program_that_nobody_has_is_freed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    real = library.functions.switchgear_program_free

    class Functions:
        switchgear_program_new = library.functions.switchgear_program_new

        def switchgear_program_free(self, address: int) -> None:
            freed.append(address)
            real(address)

    monkeypatch.setattr("switchgear.kernels.cpu.program.native", lambda: type("Fake", (), {"functions": Functions()}))
    program = Program()
    address = program.address
    del program
    gc.collect()
    assert freed == [address]
