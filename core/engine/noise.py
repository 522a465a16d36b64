"""Sampling noise as a function: the same arguments give the same number, whatever else is in the batch.

There is no generator to carry, save or restore: noise is a hash of (seed, child, output position, draw).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..records import FloatArray, IntArray

SAMPLE = 0
"""Draw that chooses a token from the target's law."""
ACCEPT = 1
"""Draw that accepts or rejects a draft token."""
RESIDUAL = 2
"""Draw that replaces a rejected draft token."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(
    seeds: IntArray | int, children: IntArray | int, positions: IntArray | int, draws: IntArray | int
) -> FloatArray:
    """Uniform numbers in the open interval (0, 1), on the grid of odd multiples of 2**-53.

    seeds: any 64-bit integers; children: index of the output within its request; positions: index of the token within
    its output; draws: what the number is for. All broadcast.
    """
    with np.errstate(over="ignore"):
        state = _mix(_words(seeds) + _GOLDEN)
        for argument in (children, positions, draws):
            state = _mix(state + _GOLDEN * (_words(argument) + np.uint64(1)))
    odd = (state >> np.uint64(11)) | np.uint64(1)
    return np.asarray(odd * 2.0**-53, dtype=np.float64)


def _words(argument: IntArray | int) -> npt.NDArray[np.uint64]:
    return np.asarray(argument, dtype=np.int64).view(np.uint64)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
