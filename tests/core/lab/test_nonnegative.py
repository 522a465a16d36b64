"""Least squares without negative terms, against scipy and against the conditions that only the optimum meets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.lab.nonnegative import nonnegative_least_squares


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 12))
def test_it_meets_the_conditions_of_the_optimum(seed: int, num_rows: int, num_columns: int) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.standard_normal((num_rows, num_columns))
    if seed % 3 == 0:  # columns that say the same
        matrix[:, -1] = matrix[:, 0]
    values = generator.standard_normal(num_rows)
    solution = nonnegative_least_squares(matrix, values)
    gradient = matrix.T @ (values - matrix @ solution)
    size = 1e-7 * (1 + np.abs(matrix).max() ** 2)
    assert (solution >= 0).all()
    assert (gradient <= size).all()
    assert np.abs(gradient[solution > 0]).max(initial=0.0) <= size


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_scipy(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    generator = np.random.default_rng(seed)
    # positive columns of very different sizes, as counts of rows and of pairs are
    matrix = generator.random((40, 9)) * 10.0 ** generator.integers(0, 7, 9)
    values = matrix @ np.maximum(generator.standard_normal(9), 0) + generator.random(40)
    expected, distance = optimize.nnls(matrix, values)
    solution = nonnegative_least_squares(matrix, values)
    assert np.linalg.norm(values - matrix @ solution) == pytest.approx(distance, rel=1e-9)
    assert solution == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_what_is_not_there_stays_out() -> None:
    assert nonnegative_least_squares(np.zeros((3, 2)), np.ones(3)).tolist() == [0.0, 0.0]
    assert nonnegative_least_squares(np.ones((3, 1)), -np.ones(3)).tolist() == [0.0]
