import numpy as np
import pytest
from switchgear.core.records import FloatArray
from switchgear.core.testing.chi_squared import goodness_of_fit

LAW: FloatArray = np.random.default_rng(1).dirichlet(np.full(40, 0.2))


def p_value(sampled_from: FloatArray, num_samples: int, seed: int) -> float:
    counts = np.random.default_rng(seed).multinomial(num_samples, sampled_from)
    return goodness_of_fit(counts.astype(np.int64), LAW)


def test_textbook_value() -> None:
    """45 and 55 of a fair coin: (25 + 25) / 50 = 1 with one degree of freedom."""
    assert goodness_of_fit(np.array([45, 55]), np.array([0.5, 0.5])) == pytest.approx(0.3173105, abs=1e-7)


def test_p_values_of_the_right_law_are_uniform() -> None:
    values = [p_value(LAW, 2000, seed) for seed in range(1000)]
    assert np.quantile(values, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.05)


def test_a_wrong_law_is_found() -> None:
    assert p_value(0.9 * LAW + 0.1 / len(LAW), 20_000, seed=0) < 1e-6


def test_an_impossible_cell_is_found_at_once() -> None:
    assert goodness_of_fit(np.array([500, 500, 1]), np.array([0.5, 0.5, 0.0])) == 0.0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="draw more samples"):
        goodness_of_fit(np.array([3, 2]), np.array([0.5, 0.5]))
