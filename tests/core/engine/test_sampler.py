import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from switchgear.core.engine.sampler import Sampled, Sampler
from switchgear.core.records import IntArray
from switchgear.core.sampling_params import SamplingParams
from switchgear.core.testing.chi_squared import goodness_of_fit
from transformers.generation import logits_process as oracle

V = 1009
EOS = 2
NO_DRAFT = np.empty(0, dtype=np.int64)
Known = tuple[Sequence[int], int]
"""A row's tokens and how many are the prompt."""


def random_logits(num_rows: int, seed: int, vocab_size: int = V, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator, dtype=torch.float64).mul(3.0).to(dtype)


def sampler_of(params: Sequence[SamplingParams], known: Known = ((1, 3), 2), vocab_size: int = V) -> Sampler:
    """Row i has `params[i]` and seed i; all know the same tokens."""
    sampler = Sampler(vocab_size, frozenset({EOS}))
    tokens = np.array(known[0], dtype=np.int64)
    for row, options in enumerate(params):
        sampler.add(row, options, seed=row, child=0, tokens=lambda: (tokens, known[1]))
    return sampler


def sample(
    sampler: Sampler, logits: torch.Tensor, rows: Sequence[int] | IntArray | None = None, **options: Any
) -> Sampled:
    index = np.arange(len(logits)) if rows is None else np.asarray(rows, dtype=np.int64)
    return sampler.sample(logits, index, np.zeros(len(index), dtype=np.int64), [NO_DRAFT] * len(index), **options)


def law_of(logits: torch.Tensor, params: SamplingParams, **options: Any) -> torch.Tensor:
    """`[L, V]` what every row of logits is sampled from."""
    sampled = sample(sampler_of([params] * len(logits), **options), logits, keep_laws=True)
    assert sampled.laws is not None
    return sampled.laws.probs(np.arange(len(logits)))


def most_likely(logits: torch.Tensor, params: SamplingParams, **options: Any) -> list[int]:
    return list(map(int, sample(sampler_of([params] * len(logits), **options), logits).token_ids))


# -- against transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "processors"),
    [
        ({}, []),
        ({"temperature": 0.3}, [oracle.TemperatureLogitsWarper(0.3)]),
        ({"temperature": 2.5}, [oracle.TemperatureLogitsWarper(2.5)]),
        ({"top_k": 1}, [oracle.TopKLogitsWarper(1)]),
        ({"top_k": 50}, [oracle.TopKLogitsWarper(50)]),
        ({"top_k": 800}, [oracle.TopKLogitsWarper(800)]),
        ({"top_k": 5000}, []),
        ({"top_p": 0.5}, [oracle.TopPLogitsWarper(0.5)]),
        ({"top_p": 0.999}, [oracle.TopPLogitsWarper(0.999)]),
        ({"top_p": 1e-6}, [oracle.TopPLogitsWarper(1e-6)]),
        ({"min_p": 0.02}, [oracle.MinPLogitsWarper(0.02)]),
        ({"min_p": 1.0}, [oracle.MinPLogitsWarper(1.0)]),
        (
            {"temperature": 1.7, "top_k": 40, "top_p": 0.8, "min_p": 0.05},
            [
                oracle.TemperatureLogitsWarper(1.7),
                oracle.TopKLogitsWarper(40),
                oracle.TopPLogitsWarper(0.8),
                oracle.MinPLogitsWarper(0.05),
            ],
        ),
        (
            {"top_k": 700, "top_p": 0.99},
            [oracle.TopKLogitsWarper(700), oracle.TopPLogitsWarper(0.99)],
        ),
        ({"repetition_penalty": 1.3}, [oracle.RepetitionPenaltyLogitsProcessor(1.3)]),
        ({"repetition_penalty": 0.6}, [oracle.RepetitionPenaltyLogitsProcessor(0.6)]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws_equal_transformers(
    options: dict[str, Any], processors: list[oracle.LogitsProcessor], dtype: torch.dtype
) -> None:
    logits = random_logits(40, seed=1, dtype=dtype)
    known = [5, 9, 9, 700, 12]
    expected = logits.clone()
    for processor in processors:
        expected = processor(torch.tensor([known] * len(logits)), expected)
    expected = expected.double().softmax(-1)
    law = law_of(logits, SamplingParams(**options), known=(known, 3))
    visible = (expected == 0) | (expected > 1e-13)  # weights under 2**-52 of the largest are cut to 0
    assert ((law > 0) == (expected > 0))[visible].all()
    torch.testing.assert_close(law, expected, rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=1e-13)


@pytest.mark.parametrize("num_output", [0, 2, 3, 4])
def test_min_tokens_equals_transformers(num_output: int) -> None:
    logits = random_logits(8, seed=2)
    known = list(range(10, 15 + num_output))
    processor = oracle.MinNewTokensLengthLogitsProcessor(5, 3, [EOS, 77])
    expected = processor(torch.tensor([known] * 8), logits).softmax(-1)
    law = law_of(logits, SamplingParams(min_tokens=3, stop_token_ids=[77]), known=(known, 5))
    torch.testing.assert_close(law.float(), expected, rtol=1e-5, atol=1e-13)


def test_min_tokens_leaves_an_ignored_eos_alone() -> None:
    law = law_of(random_logits(1, seed=2), SamplingParams(min_tokens=3, ignore_eos=True))
    assert law[0, EOS] > 0


def test_ignored_eos_may_still_be_sampled() -> None:
    logits = torch.zeros(1, V)
    logits[0, EOS] = 9.0
    assert most_likely(logits, SamplingParams(temperature=0, ignore_eos=True)) == [EOS]


# -- bias, masks and penalties ----------------------------------------------------------------------------------------


def test_presence_and_frequency_follow_the_formula_of_openai() -> None:
    """mu[j] -> mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c counted in the output alone."""
    logits = random_logits(4, seed=3, dtype=torch.float64)
    prompt, output = [5, 6, 7], [6, 8, 8, 9, 8]
    expected = logits.clone()
    for token, count in {6: 1, 8: 3, 9: 1}.items():
        expected[:, token] -= count * 0.7 + 1.1
    params = SamplingParams(presence_penalty=1.1, frequency_penalty=0.7)
    law = law_of(logits, params, known=(prompt + output, len(prompt)))
    torch.testing.assert_close(law, expected.softmax(-1), rtol=1e-10, atol=1e-13)


def test_penalties_follow_a_row_as_it_grows() -> None:
    rng = np.random.default_rng(4)
    params = SamplingParams(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2)
    known = [rng.integers(0, 30, 12)]
    growing = Sampler(30, frozenset())
    growing.add(0, params, seed=0, child=0, tokens=lambda: (known[0], 12))
    for step in range(40):
        logits = random_logits(1, seed=step, vocab_size=30)
        fresh = Sampler(30, frozenset())
        fresh.add(0, params, seed=0, child=0, tokens=lambda: (known[0], 12))
        laws = [sample(sampler, logits, keep_laws=True).laws for sampler in (growing, fresh)]
        assert laws[0] is not None and laws[1] is not None
        assert torch.equal(laws[0].weights, laws[1].weights)
        known[0] = np.append(known[0], rng.integers(0, 30, step % 3))


def test_bias_is_added_before_the_penalties() -> None:
    logits = torch.zeros(1, V)
    logits[0, 5], logits[0, 6] = -1.0, 0.9
    bias = {5: 3.0}  # 2.0, halved by the penalty: 1.0; the other way round it would be -2.0 + 3.0
    options: dict[str, Any] = {"temperature": 0, "logit_bias": bias, "repetition_penalty": 2.0}
    assert most_likely(logits, SamplingParams(**options), known=([5], 1)) == [5]
    logits[0, 6] = 1.01
    assert most_likely(logits, SamplingParams(**options), known=([5], 1)) == [6]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_can_force_and_forbid(temperature: float) -> None:
    logits = random_logits(30, seed=5)
    force = SamplingParams(temperature=temperature, logit_bias={11: 100})
    assert most_likely(logits, force) == [11] * 30
    forbid = SamplingParams(temperature=temperature, logit_bias={int(token): -100 for token in logits.argmax(-1)})
    assert not set(most_likely(logits, forbid)) & set(forbid.logit_bias)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_are_not_allowed_are_never_sampled(temperature: float) -> None:
    logits = random_logits(200, seed=6)
    allowed = torch.rand(200, V, generator=torch.Generator().manual_seed(0)) < 0.01
    tokens = sample(sampler_of([SamplingParams(temperature=temperature)] * 200), logits, allowed=allowed).token_ids
    assert allowed[torch.arange(200), torch.from_numpy(tokens)].all()


def test_the_callers_logits_are_left_as_they_are() -> None:
    options = {"logit_bias": {1: 1.0}, "repetition_penalty": 2.0, "min_tokens": 9, "top_p": 0.5}
    for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(**options)):  # type: ignore[arg-type]
        logits = random_logits(4, seed=7)
        before = logits.clone()
        sample(sampler_of([params] * 4), logits)
        assert torch.equal(logits, before)


def test_logits_beyond_the_vocabulary_are_never_sampled() -> None:
    logits = random_logits(50, seed=8, vocab_size=64)
    logits[:, 60:] = 50.0
    for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=3)):
        assert max(most_likely(logits, params, vocab_size=60)) < 60


# -- the draw ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 10, "temperature": 1.5}, {"min_p": 0.1}])
def test_samples_have_the_law(options: dict[str, Any]) -> None:
    """N = 100,000 over 32 tokens. One probability too large by 10 % of itself is found from p = 0.1 on."""
    logits = random_logits(1, seed=9, vocab_size=32, dtype=torch.float64)
    params = SamplingParams(**options)
    law = law_of(logits, params, vocab_size=32)[0].numpy()
    num_samples = 100_000
    sampler = sampler_of([params], vocab_size=32)
    drafts = [np.zeros(num_samples, dtype=np.int64)] * num_samples
    rows, positions = np.zeros(num_samples, dtype=np.int64), np.arange(num_samples)
    tokens = sampler.sample(logits.expand(num_samples, -1), rows, positions, drafts).token_ids
    assert goodness_of_fit(np.bincount(tokens, minlength=32), law) > 1e-6


def test_a_very_low_temperature_is_greedy_and_a_very_high_one_flat() -> None:
    logits = random_logits(20, seed=10)
    for temperature in (1e-6, 1e-40, 1e-300):
        assert most_likely(logits, SamplingParams(temperature=temperature)) == logits.argmax(-1).tolist()
    assert law_of(logits, SamplingParams(temperature=100)).max() < 1.5 / V


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(2, V)
    logits[0, [30, 900]] = 1.0
    assert most_likely(logits, SamplingParams(temperature=0)) == [30, 0]


def test_equals_at_the_edge_of_a_filter_are_all_kept() -> None:
    logits = torch.zeros(1, V)
    logits[0, :10] = torch.tensor([5.0, 4, 4, 4, 4, 3, 3, 2, 1, 1])
    for params in (SamplingParams(top_k=3), SamplingParams(top_p=0.6, top_k=6)):
        assert law_of(logits, params)[0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4]


# -- independence of the batch ----------------------------------------------------------------------------------------


def any_params(rng: np.random.Generator) -> SamplingParams:
    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    return SamplingParams(
        temperature=one_of(0.0, 0.7, 1.0, 3.0),
        top_k=one_of(0, 0, 1, 20, 600),
        top_p=one_of(1.0, 1.0, 0.5, 0.95),
        min_p=one_of(0.0, 0.0, 0.1),
        repetition_penalty=one_of(1.0, 1.0, 1.5),
        frequency_penalty=one_of(0.0, 0.5),
        logit_bias=one_of({}, {}, {3: 2.0, 1008: -1.0}),
        min_tokens=one_of(0, 5),
        logprobs=one_of(None, 0, 3),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_tokens_and_laws_do_not_depend_on_the_batch(dtype: torch.dtype, num_threads: int) -> None:
    """Bit for bit: each row alone, and in batches of random rows in random order."""
    rng = np.random.default_rng(12)
    params = [any_params(rng) for _ in range(60)]
    logits = random_logits(60, seed=12, dtype=dtype)
    logits[::4] = logits[::4].round()  # equals
    sampler = sampler_of(params, known=([4, 5, 5, 9, 3, 1000], 3))
    is_random = np.array([options.temperature > 0 for options in params])
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = [sample(sampler, logits[[row]], [row], keep_laws=True) for row in range(60)]
        for _ in range(15):
            rows = rng.permutation(60)[: rng.integers(2, 61)]
            together = sample(sampler, logits[torch.from_numpy(rows)], rows, keep_laws=True)
            assert together.token_ids.tolist() == [int(alone[row].token_ids[0]) for row in rows]
            expected = [alone[row].laws for row in rows[is_random[rows]]]
            assert together.laws is not None
            assert torch.equal(together.laws.weights, torch.cat([laws.weights for laws in expected if laws]))
    finally:
        torch.set_num_threads(threads)


def test_noise_depends_on_seed_child_and_position_alone() -> None:
    logits = torch.zeros(1, V)

    def token(row: int, seed: int, child: int, num_output: int) -> int:
        sampler = Sampler(V, frozenset())
        sampler.add(row, SamplingParams(), seed, child, lambda: (np.zeros(4 + num_output, dtype=np.int64), 4))
        return int(sample(sampler, logits, [row]).token_ids[0])

    assert token(0, 1, 2, 3) == token(17, 1, 2, 3)
    assert len({token(0, 1, 2, 3), token(0, 2, 2, 3), token(0, 1, 1, 3), token(0, 1, 2, 4)}) == 4


def test_an_entry_after_drafts_is_what_the_row_samples_once_they_are_its_own() -> None:
    logits = random_logits(1, seed=13)
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=4, temperature=2.0)
    draft = np.array([5, 6, 5, 8])
    before = sampler_of([params], known=([3, 4], 1))
    for offset in range(5):
        after = sampler_of([params], known=([3, 4, *draft[:offset].tolist()], 1))
        drafted = before.sample(logits, np.zeros(1, dtype=np.int64), np.array([offset]), [draft], keep_laws=True)
        plain = sample(after, logits, keep_laws=True)
        assert drafted.laws is not None and plain.laws is not None
        assert torch.equal(drafted.laws.weights, plain.laws.weights)
        assert drafted.token_ids.tolist() == plain.token_ids.tolist()


# -- rows, errors, scores ---------------------------------------------------------------------------------------------


def test_rows_come_and_go() -> None:
    sampler = Sampler(V, frozenset())
    logits = torch.zeros(1, V)

    def add(row: int) -> None:
        params = SamplingParams(temperature=0, logit_bias={row: 5.0})
        sampler.add(row, params, seed=0, child=0, tokens=lambda: (np.array([1]), 1))

    for row in range(100):
        add(row)
    for row in range(0, 100, 3):
        sampler.remove(row)
    for row in range(100, 150):
        add(row)
    rows = sorted(sampler.rows)
    assert rows == [row for row in range(150) if row % 3 or row >= 100]
    assert sample(sampler, logits.expand(len(rows), -1), rows).token_ids.tolist() == rows


def test_rows_that_come_and_go_leave_no_memory_behind() -> None:
    sampler = Sampler(V, frozenset({EOS}))
    tracemalloc.start()
    for row in range(5000):
        sampler.add(row, SamplingParams(), seed=0, child=0, tokens=lambda: (NO_DRAFT, 0))
        sampler.remove(row)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20_000


def test_an_empty_batch_is_fine() -> None:
    sampled = sample(sampler_of([]), torch.zeros(0, V))
    assert sampled.token_ids.tolist() == [] and sampled.errors == {}


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 5, "top_p": 0.9}, {"min_p": 0.1}])
def test_bad_rows_get_their_sentence_and_leave_the_others_alone(options: dict[str, Any]) -> None:
    params = [SamplingParams(**options)] * 6
    logits = random_logits(6, seed=14)
    allowed = torch.ones(6, V, dtype=torch.bool)
    clean = sample(sampler_of(params), logits, allowed=allowed)
    assert clean.errors == {}
    logits[1, 77] = torch.nan
    logits[2] = torch.nan
    logits[4, 3] = torch.inf
    allowed[5] = False
    sampled = sample(sampler_of(params), logits, allowed=allowed)
    assert sorted(sampled.errors) == [1, 2, 4, 5]
    assert all("logits that are not numbers at output position 0" in sampled.errors[entry] for entry in (1, 2, 4))
    assert "no token is allowed at output position 0" in sampled.errors[5]
    assert sampled.token_ids[[0, 3]].tolist() == clean.token_ids[[0, 3]].tolist()
    assert (sampled.token_ids[[1, 2, 4, 5]] < 0).all()


def test_scores_are_of_the_raw_logits_and_of_the_rows_that_asked() -> None:
    wanted: list[int | None] = [None, 0, 3, None, 5]
    sampler = sampler_of([SamplingParams(logprobs=count, temperature=0.1, logit_bias={9: 50.0}) for count in wanted])
    logits = random_logits(5, seed=15)
    token_ids = sample(sampler, logits).token_ids
    scores = sampler.score(logits, np.arange(5), token_ids)
    assert scores is not None
    assert scores.entries.tolist() == [1, 2, 4]
    raw = logits.double().log_softmax(-1).numpy()
    for place, entry in enumerate(scores.entries.tolist()):
        own = raw[entry, token_ids[entry]]
        assert scores.values.logprobs[place] == pytest.approx(own, abs=1e-5)
        assert scores.values.ranks[place] == (raw[entry] > own).sum() + 1
        assert scores.values.top_ids[place].tolist() == np.argsort(-raw[entry])[:5].tolist()
        assert scores.values.top_logprobs[place] == pytest.approx(np.sort(raw[entry])[::-1][:5], abs=1e-5)


def test_no_scores_where_nobody_asked_or_the_entry_failed() -> None:
    logits = random_logits(2, seed=16)
    assert sampler_of([SamplingParams()] * 2).score(logits, np.arange(2), np.array([1, 2])) is None
    scores = sampler_of([SamplingParams(logprobs=1)] * 2).score(logits, np.arange(2), np.array([-1, 2]))
    assert scores is not None and scores.entries.tolist() == [1]


def test_known_tokens_may_be_a_view_of_a_growing_buffer() -> None:
    buffer = np.zeros(10, dtype=np.int64)
    buffer[:3] = [4, 5, 6]
    length = [3]
    view: Callable[[], tuple[IntArray, int]] = lambda: (buffer[: length[0]], 2)  # noqa: E731
    sampler = Sampler(V, frozenset())
    sampler.add(0, SamplingParams(temperature=0, frequency_penalty=2.0), seed=0, child=0, tokens=view)
    logits = torch.zeros(1, V)
    logits[0, 6], logits[0, 7] = 1.0, 0.5
    assert sample(sampler, logits).token_ids.tolist() == [7]
    buffer[3], length[0] = 7, 4
    assert sample(sampler, logits).token_ids.tolist() == [0]
