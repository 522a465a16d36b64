import numpy as np
import pytest
from switchgear.core.engine.noise import ACCEPT, RESIDUAL, SAMPLE, uniform
from switchgear.core.records import FloatArray, IntArray
from switchgear.core.testing.chi_squared import goodness_of_fit

MASK = 2**64 - 1


def by_definition(seed: int, child: int, position: int, draw: int) -> float:
    """The same hash in Python integers."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    state = mix((seed + 0x9E3779B97F4A7C15) & MASK)
    for argument in (child, position, draw):
        state = mix((state + 0x9E3779B97F4A7C15 * (argument + 1)) & MASK)
    return ((state >> 11) | 1) * 2.0**-53


def test_golden_values() -> None:
    """Changing these changes the output of every seeded request."""
    assert uniform(0, 0, 0, SAMPLE).item() == 0.12964561829974752
    assert uniform(42, 1, 7, ACCEPT).item() == 0.8659511370862353
    assert uniform(-1, 3, 10_000, RESIDUAL).item() == 0.19767111730319742


def test_vectorised_form_equals_the_definition() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(-(2**63), 2**63 - 1, 200)
    children, positions, draws = rng.integers(0, 2**20, (3, 200))
    expected = [by_definition(*map(int, values)) for values in zip(seeds, children, positions, draws, strict=True)]
    assert uniform(seeds, children, positions, draws).tolist() == expected


def test_arguments_broadcast() -> None:
    grid = uniform(np.arange(3)[:, None], 0, np.arange(4), SAMPLE)
    assert grid.shape == (3, 4)
    assert grid[2, 1] == uniform(2, 0, 1, SAMPLE)


def test_every_value_is_inside_the_open_interval_and_on_the_grid() -> None:
    values = uniform(1, 0, np.arange(1_000_000), SAMPLE)
    assert values.min() > 0.0 and values.max() < 1.0
    assert (np.mod(values * 2.0**53, 2.0) == 1.0).all()
    assert (2**53 - 1) * 2.0**-53 < 1.0, "the largest value of the grid"


STREAMS = {
    "seed": lambda n: uniform(np.arange(n), 0, 0, SAMPLE),
    "child": lambda n: uniform(7, np.arange(n), 0, SAMPLE),
    "position": lambda n: uniform(7, 0, np.arange(n), SAMPLE),
    "draw": lambda n: uniform(7, 0, 0, np.arange(n)),
}


@pytest.mark.parametrize("argument", STREAMS)
def test_values_along_each_argument_are_uniform(argument: str) -> None:
    """N = 1e6, 1000 cells: a density off by 3 % in half of the cells adds 900 to a statistic of 999 +- 45."""
    assert_uniform(STREAMS[argument](1_000_000), 1000)


@pytest.mark.parametrize("argument", STREAMS)
def test_neighbours_along_each_argument_are_independent(argument: str) -> None:
    """N = 1e6 pairs in 32 x 32 cells: a correlation of 0.03 adds about 900 to a statistic of 1023 +- 45."""
    values = STREAMS[argument](1_000_001)
    assert_uniform(pairs(values[:-1], values[1:]), 1024)


def test_draws_of_one_position_are_independent() -> None:
    positions = np.arange(1_000_000)
    sample, accept, residual = (uniform(7, 0, positions, draw) for draw in (SAMPLE, ACCEPT, RESIDUAL))
    assert_uniform(pairs(sample, accept), 1024)
    assert_uniform(pairs(accept, residual), 1024)
    assert_uniform(pairs(sample, residual), 1024)


@pytest.mark.parametrize("index", range(4))
def test_each_input_bit_flips_each_output_bit_half_of_the_time(index: int) -> None:
    """4000 trials a pair of bits: 0.5 +- 0.008, so 0.45 to 0.55 is over six deviations."""
    arguments = list(np.random.default_rng(index).integers(0, 2**62, (4, 4000)))
    before = bits(uniform(*arguments))
    for bit in range(0, 63, 3):
        flipped = list(arguments)
        flipped[index] = arguments[index] ^ (1 << bit)
        rates = (before ^ bits(uniform(*flipped))).mean(axis=0)
        assert rates.min() > 0.45 and rates.max() < 0.55, f"bit {bit}"


def test_arguments_do_not_stand_in_for_each_other() -> None:
    values = {
        uniform(*order).item() for order in ((1, 2, 0, 0), (2, 1, 0, 0), (1, 0, 2, 0), (0, 1, 2, 0), (1, 2, 0, 1))
    }
    assert len(values) == 5


def pairs(first: FloatArray, second: FloatArray) -> FloatArray:
    """Two numbers folded into one that is uniform if, on a 32 x 32 grid, they are uniform and independent."""
    return np.asarray((np.floor(first * 32) + second) / 32)


def bits(values: FloatArray) -> IntArray:
    """The 52 random bits of each value."""
    words = (values * 2.0**53).astype(np.int64)
    return np.asarray((words[:, None] >> np.arange(1, 53)) & 1)


def assert_uniform(values: FloatArray, num_cells: int) -> None:
    counts = np.bincount((values * num_cells).astype(np.int64), minlength=num_cells)
    assert goodness_of_fit(counts, np.full(num_cells, 1 / num_cells)) > 1e-6
