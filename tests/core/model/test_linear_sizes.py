"""Products in bfloat16 come in few sizes, since torch keeps memory for each."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from switchgear.core.model import ops

GROWTH = """
import torch
from switchgear.core.model import ops

def anonymous():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024

weight = torch.ones(64, 64, dtype=torch.bfloat16)
ops.linear(torch.ones(1, 64, dtype=torch.bfloat16), weight)
before = anonymous()
for num_rows in range(1, 1001):
    ops.linear(torch.ones(num_rows, 64, dtype=torch.bfloat16), weight)
print(anonymous() - before)
"""


def test_few_sizes_and_little_waste() -> None:
    sizes = [ops.size_above(num_rows) for num_rows in range(1, 4097)]
    assert len(set(sizes)) == 16 + 8 * 8
    assert sizes[:17] == [*range(1, 17), 18]
    for num_rows, size in enumerate(sizes, start=1):
        assert num_rows <= size < num_rows * 1.125


@pytest.mark.parametrize("num_rows", [0, 1, 16, 17, 33, 75])
def test_the_rows_are_those_asked_for(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 24, generator=generator).bfloat16()
    weight, bias = torch.randn(40, 24, generator=generator).bfloat16(), torch.randn(40, generator=generator).bfloat16()
    expected = (x.double() @ weight.double().T + bias.double()).bfloat16()
    y = ops.linear(x, weight, bias)
    assert y.shape == (num_rows, 40)
    torch.testing.assert_close(y, expected, atol=0.05, rtol=0.02)
    out = torch.empty(num_rows, 40, dtype=torch.bfloat16)
    assert ops.linear(x, weight, bias, out) is out and torch.equal(out, y)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_numbers_of_rows_met() -> None:
    """Without rounding up, a thousand sizes take half a gigabyte."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100
