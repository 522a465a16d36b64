import numpy as np
import pytest
import torch
from switchgear.core.engine.law import Filters, draw, filtered, weights_of


@pytest.mark.parametrize("uniform", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_a_token_of_weight_zero_is_never_drawn(uniform: float) -> None:
    """Also where the noise is next to 0 or 1 and the zeros stand at the ends."""
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(rng.integers(0, 2**57, (2000, 33)) * (rng.random((2000, 33)) < 0.1))
    weights = weights[weights.sum(-1) > 0]
    tokens = draw(weights, np.full(len(weights), uniform))
    assert (weights.gather(1, tokens[:, None]) > 0).all()


def test_top_p_stops_at_a_sum_that_is_reached_exactly() -> None:
    filters = Filters(np.zeros(1, dtype=np.int64), np.array([0.5]), np.zeros(1))
    assert filtered(torch.tensor([[1, 4, 1, 2]]), filters).tolist() == [[0, 4, 0, 0]]


def test_filters_do_not_depend_on_how_many_candidates_they_look_at() -> None:
    rng = np.random.default_rng(11)
    logits = torch.from_numpy(rng.normal(0, 3, (300, 400))).float()
    logits[::3] = logits[::3].round()  # many equals
    weights = weights_of(logits, torch.from_numpy(rng.choice([0.2, 1.0, 5.0], 300)).float())
    filters = Filters(
        top_k=rng.choice([0, 1, 4, 5, 60, 64, 399, 400], 300),
        top_p=rng.choice([0.1, 0.9, 0.9999, 1.0], 300),
        min_p=rng.choice([0.0, 0.01], 300),
    )
    whole = filtered(weights.clone(), filters, num_candidates=400)
    for num_candidates in (1, 4, 5, 64):
        assert torch.equal(filtered(weights.clone(), filters, num_candidates), whole)
