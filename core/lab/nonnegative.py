"""Least squares with coefficients that may not be negative, since nothing takes less than no time."""

from __future__ import annotations

import numpy as np

from ..records import BoolArray, FloatArray

TOLERANCE = 1e-10
"""Of the gradient, relative to its size at the start."""


def nonnegative_least_squares(matrix: FloatArray, values: FloatArray) -> FloatArray:
    """The x >= 0 `[N]` that brings matrix `[M, N]` times x nearest to values `[M]`.

    The active set method of Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    # columns of one size, so that one tolerance suits counts of rows and of pairs
    norms = np.linalg.norm(matrix, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    matrix = matrix / scale
    num_columns = matrix.shape[1]
    solution = np.zeros(num_columns)
    is_free, is_barred = np.zeros(num_columns, dtype=bool), np.zeros(num_columns, dtype=bool)
    gradient = matrix.T @ values
    threshold = TOLERANCE * max(np.abs(gradient).max(initial=0.0), np.finfo(float).tiny)
    while True:
        candidates = np.where(is_free | is_barred, -np.inf, gradient)
        if candidates.max(initial=-np.inf) <= threshold:
            return solution / scale
        entering = np.argmax(candidates)
        is_free[entering] = True
        solution = settle(matrix, values, solution, is_free)
        gradient = matrix.T @ (values - matrix @ solution)
        if is_free[entering]:
            is_barred[:] = False
        else:  # what only rounding let in would come in for ever
            is_barred[entering] = True


def settle(matrix: FloatArray, values: FloatArray, solution: FloatArray, is_free: BoolArray) -> FloatArray:
    """Least squares over the free columns; those that would turn negative are bound to 0 again, in `is_free`."""
    while True:
        target = np.zeros_like(solution)
        target[is_free] = np.linalg.lstsq(matrix[:, is_free], values, rcond=None)[0]
        falling = is_free & (target <= 0)
        if not falling.any():
            return target
        # as far towards the target as nothing crosses 0
        steps = solution[falling] / np.maximum(solution[falling] - target[falling], np.finfo(float).tiny)
        solution = solution + min(1.0, steps.min()) * (target - solution)
        first = np.flatnonzero(falling)[np.argmin(steps)]
        is_free[first] = False
        is_free &= solution > 0
        solution[~is_free] = 0.0
