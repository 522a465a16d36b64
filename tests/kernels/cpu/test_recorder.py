"""What is recorded: PyTorch's operations as well as native kernels, in memory that is used again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from switchgear.kernels.cpu.act_mul import act_mul
from switchgear.kernels.cpu.memory import Arena
from switchgear.kernels.cpu.recorder import Call, NotRecordable, Stretch, record
from switchgear.kernels.cpu.working_memory import Lease, Pieces

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def pieces() -> Pieces:
    return Pieces(Arena())


COMPUTATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one operation": lambda x: x * 2,
    "views alone": lambda x: x.view(2, -1)[:, 1:].t(),
    "of views": lambda x: x.view(-1).split(4)[1] + x.view(-1)[:4],
    "in place": lambda x: x.clone().mul_(3).add_(x),
    "into a part": lambda x: torch.zeros(2, 12).index_copy_(1, torch.tensor([1, 0, 5, 4, 3, 2, 7, 6]), x),
    "several results": lambda x: torch.cat([part.double() for part in x.sort(-1)], -1),
    "into what is given": lambda x: torch.mul(x, 5, out=torch.empty(2, 8)),
    "empty": lambda x: torch.cat((x[:0], x)),
    "native alone": lambda x: act_mul(x, "silu"),
    "native between": lambda x: act_mul(torch.cat((x + 1, x), -1), "relu").sum(-1, keepdim=True) * x,
    "lookup": lambda x: x[torch.tensor([1, 1, 0])],
    "not dense": lambda x: torch.empty(8, 2).t().copy_(x) + 1,
}


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("inference", [True, False])
def test_a_replay_computes_from_what_is_there_now(name: str, inference: bool, pieces: Pieces) -> None:
    with torch.inference_mode(inference):
        compute, x = COMPUTATIONS[name], torch.arange(16.0).view(2, 8).clone()
        expected = compute(x).clone()
        recording, output = record(lambda: compute(x), pieces)
        other, _ = record(lambda: compute(x + 1), pieces)
        assert torch.equal(output, expected)
        for seed in range(3):
            x.copy_(torch.randn(2, 8, generator=torch.Generator().manual_seed(seed)))
            before = output.clone()
            for each, given in ((recording, x), (other, x + 1), (recording, x)):
                assert torch.equal(each.replay(), compute(given))
            assert torch.equal(output, before), "what came out once is the caller's"


def test_native_kernels_that_follow_each_other_are_one_stretch(pieces: Pieces) -> None:
    x = torch.randn(3, 16)

    def compute() -> torch.Tensor:
        y = act_mul(act_mul(act_mul(x + 1, "silu"), "relu"), "gelu")
        return y.double()

    recording, _ = record(compute, pieces)
    assert [type(part) for part in recording.parts] == [Call, Stretch]
    stretch = recording.parts[1]
    assert isinstance(stretch, Stretch) and (stretch.first, stretch.last) == (0, 3)
    assert recording.last is not None, "the last call makes the output, and is not copied"


@pytest.mark.parametrize(
    ("what", "compute"),
    [
        ("aten.item", lambda x: x * x.sum().item()),
        ("aten.nonzero", lambda x: x.nonzero()),
        ("aten.index.Tensor", lambda x: x[x > 3]),
        ("aten.equal", lambda x: x if torch.equal(x, x) else -x),
        ("Tensor.tolist", lambda x: x * x.tolist()[3]),
        ("Tensor.numpy", lambda x: x * float(x.numpy()[3])),
        ("unique", lambda x: x.unique()),
    ],
)
def test_what_the_host_must_decide_is_refused(
    what: str, compute: Callable[[torch.Tensor], torch.Tensor], pieces: Pieces
) -> None:
    x = torch.arange(8.0)
    with torch.inference_mode(), pytest.raises(NotRecordable, match=rf"{what}.* leaves to the host"):
        record(lambda: compute(x), pieces)
    recording, _ = record(lambda: x * 2, pieces)
    assert torch.equal(recording.replay(), x * 2)


@torch.library.custom_op("switchgear_tests::gated", mutates_args=())
def gated(x: torch.Tensor) -> torch.Tensor:
    return act_mul(act_mul(x, "silu").repeat(1, 2), "relu")


def test_an_operation_that_calls_native_kernels_is_called_again_as_a_whole(pieces: Pieces) -> None:
    x = torch.randn(3, 16)
    with torch.inference_mode():
        recording, _ = record(lambda: gated(x) + 1, pieces)
        assert [type(part) for part in recording.parts] == [Call]
        x.copy_(torch.randn(3, 16))
        assert torch.equal(recording.replay(), gated(x) + 1)


def test_memory_of_a_tensor_that_is_gone_is_used_again(pieces: Pieces) -> None:
    x = torch.randn(4, 64)

    def compute() -> torch.Tensor:
        y = torch.cat((x, x), -1)
        for _ in range(20):
            half = act_mul(y, "silu")
            y = torch.empty(4, 128)
            y[:, :64] = half
            del half
        return y

    record(compute, pieces)
    alone = pieces.num_bytes
    for _ in range(5):
        record(compute, pieces)
    assert pieces.num_bytes == alone


def test_a_lease_gives_every_piece_back_once(pieces: Pieces) -> None:
    lease = Lease(pieces)
    first = lease.tensor(torch.empty(100))
    view, address = first[3:], first.data_ptr()
    del first
    assert lease.tensor(torch.empty(100)).data_ptr() != address, "a view keeps its memory"
    del view
    assert lease.tensor(torch.empty(101)).data_ptr() == address, "sizes up to the same power of two share"
    kept = lease.tensor(torch.empty(7, 3, dtype=torch.float64).t())
    assert kept.shape == (3, 7) and kept.stride() == (1, 3) and kept.dtype == torch.float64
    lease.end()
    held = sum(len(free) for free in pieces.free.values())
    del kept
    assert held == sum(len(free) for free in pieces.free.values()) == 3
    assert pieces.num_bytes == 512 + 512 + 256
