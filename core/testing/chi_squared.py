"""Chi-squared tests for laws: how likely counts like these, or worse, are if the law is right.

For a plugin that promises `distribution`. With N samples, a law that is off by d[i] in cell i (true p[i] + d[i]) adds
N * sum(d[i]**2 / p[i]) to the statistic's mean, which is the number of cells: choose N so that the sum is well above
the threshold. Take fixed seeds and a threshold such as 1e-6, and a right law never fails the test.
"""

from __future__ import annotations

import numpy as np

from ..records import FloatArray, IntArray

LEAST_EXPECTED = 5.0
"""Cells that expect fewer samples are merged, since the statistic's law is only right for larger ones."""


def goodness_of_fit(counts: IntArray, law: FloatArray) -> float:
    """The p-value of `counts` `[C]` under `law` `[C]`; 0 if a cell of probability 0 was hit.

    Fails with ValueError when fewer than two cells are left to compare.
    """
    if counts[law == 0].any():
        return 0.0
    order = np.argsort(law, kind="stable")
    expected, observed = law[order] * counts.sum(), counts[order].astype(np.float64)
    reach = np.searchsorted(np.cumsum(expected), LEAST_EXPECTED) + 1
    num_merged = max(int(reach), int((expected < LEAST_EXPECTED).sum()))
    expected = np.array([expected[:num_merged].sum(), *expected[num_merged:]])
    observed = np.array([observed[:num_merged].sum(), *observed[num_merged:]])
    if len(expected) < 2:
        raise ValueError("the law leaves fewer than two cells to compare; draw more samples.")
    return _survival(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


def _survival(statistic: float, degrees: int) -> float:
    """Probability that a chi-squared variable of `degrees` degrees of freedom exceeds `statistic`."""
    import torch

    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
