"""The short way of greedy steps says what the long one says, and leaves everything else to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from switchgear.core.engine.choosing import Choosing
from switchgear.core.engine.sampler import Sampler
from switchgear.core.sampling_params import SamplingParams

from .build import add, drain, virtual_engine
from .schedulers import Continuous

V = 50
NOTHING = np.empty(0, dtype=np.int64)
GREEDY = SamplingParams(temperature=0)


def sampler_of(*params: SamplingParams) -> Sampler:
    sampler = Sampler(V, frozenset({2}))
    for row, options in enumerate(params):
        sampler.add(row, options, seed=row, child=0, tokens=lambda: (np.array([1, 3]), 2))
    return sampler


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_what_sampling_says_also_of_equal_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # few values, so that most rows have several largest ones; more columns than the vocabulary
    logits = torch.randint(0, 4, (64, V + 6), generator=generator).to(dtype)
    sampler, rows = sampler_of(*[GREEDY] * 64), np.arange(64)
    long = sampler.sample(logits, rows, np.zeros(64, dtype=np.int64), [NOTHING] * 64).token_ids
    short = sampler.most_likely(logits, rows.tolist())
    assert short is not None and short.dtype == long.dtype
    assert short.tolist() == long.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
    ],
)
def test_a_row_that_wants_more_goes_the_long_way_until_it_has_left(options: dict[str, object]) -> None:
    sampler = sampler_of(GREEDY, SamplingParams(**{"temperature": 0, **options}))  # type: ignore[arg-type]
    logits = torch.zeros(2, V)
    assert sampler.most_likely(logits, [0, 1]) is None
    assert sampler.most_likely(logits[:1], [0]) is not None
    sampler.remove(1)
    sampler.add(1, GREEDY, seed=1, child=0, tokens=lambda: (np.array([1, 3]), 2))
    assert sampler.most_likely(logits, [0, 1]) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_go_the_long_way(value: float) -> None:
    logits = torch.zeros(2, V)
    logits[1, 7] = value
    assert sampler_of(GREEDY, GREEDY).most_likely(logits, [0, 1]) is None


def test_a_row_without_any_allowed_token_goes_the_long_way() -> None:
    assert sampler_of(GREEDY).most_likely(torch.full((1, V), -torch.inf), [0]) is None


def test_logits_of_another_number_of_rows_go_the_long_way() -> None:
    assert sampler_of(GREEDY, GREEDY).most_likely(torch.zeros(3, V), [0, 1]) is None


def test_an_engine_gives_the_same_tokens_and_reasons_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []
    for is_short in (True, False):
        if not is_short:
            monkeypatch.setattr(Choosing, "most_likely", lambda *_: None)
        engine = virtual_engine(Continuous)
        for number in range(6):
            # some end at the end of text, some at a token of their own, some at their length
            params = SamplingParams(max_tokens=4 + 5 * number, temperature=0, stop_token_ids=[number])
            add(engine, f"{number}", range(3, 8 + number), params)
        heard = drain(engine)
        outputs.append([(heard.output(f"{number}"), heard.reason(f"{number}")) for number in range(6)])
    assert outputs[0] == outputs[1]
    assert {reason for _, reason in outputs[0]} == {"stop", "length"}
