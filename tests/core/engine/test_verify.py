from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from switchgear.core.engine.sampler import Sampler
from switchgear.core.engine.verify import Entries, Verified, fitted, no_draft, verify
from switchgear.core.records import Draft, FloatArray, IntArray
from switchgear.core.sampling_params import SamplingParams
from switchgear.core.testing.chi_squared import goodness_of_fit

NUM_ROWS = 1000


class Bench:
    """Rows that grow by what is verified, in front of a target that is a table from the last token to logits."""

    def __init__(self, target: FloatArray, params: Sequence[SamplingParams], capacity: int = 600) -> None:
        self.target = torch.from_numpy(target)
        self.tokens = np.zeros((len(params), capacity), dtype=np.int64)
        self.lengths = np.ones(len(params), dtype=np.int64)
        self.sampler = Sampler(target.shape[1], frozenset())
        for row, options in enumerate(params):
            self.sampler.add(row, options, row, 0, partial(self.known, row))

    def known(self, row: int) -> tuple[IntArray, int]:
        return self.tokens[row, : self.lengths[row]], 1

    @property
    def last(self) -> IntArray:
        return np.asarray(self.tokens[np.arange(len(self.tokens)), self.lengths - 1])

    def output(self, row: int, num_tokens: int) -> list[int]:
        return list(map(int, self.tokens[row, 1 : num_tokens + 1]))

    def restart(self) -> IntArray:
        """Go back to token 0, at positions not used yet: where each row goes on."""
        self.tokens[:] = 0
        return self.lengths.copy()

    def step(self, draft: Draft, rows: IntArray | None = None) -> Verified:
        """Verify a draft for some rows (all at first) and append what they emit."""
        rows = np.arange(len(self.tokens)) if rows is None else rows
        entries = Entries.of(rows, draft)
        states = np.concatenate([self.last[rows][:, None], draft.tokens], axis=1)[entries.owner, entries.offsets]
        verified = verify(self.sampler, self.target[torch.from_numpy(states)], entries)
        for index in range(verified.tokens.shape[1]):
            self.tokens[rows, self.lengths[rows] + index] = verified.tokens[:, index].clip(min=0)
        self.lengths[rows] += verified.num_accepted + 1
        return verified


def markov_draft(law: FloatArray, last: IntArray, num_drafts: int, rng: np.random.Generator) -> Draft:
    """Tokens drawn from `law` `[V, V]`, one after the other, with the law of each."""
    tokens, probs = [], []
    for _ in range(num_drafts):
        probs.append(law[last])
        last = (probs[-1].cumsum(-1) < rng.random((len(last), 1))).sum(-1).clip(max=law.shape[1] - 1)
        tokens.append(last)
    lens = np.full(len(last), num_drafts)
    return Draft(np.stack(tokens, axis=1), lens, torch.from_numpy(np.stack(probs, axis=1)))


def without_probs(draft: Draft) -> Draft:
    return Draft(draft.tokens, draft.lens)


def laws(seed: int, num_states: int, vocab_size: int, concentration: float) -> FloatArray:
    return np.random.default_rng(seed).dirichlet(np.full(vocab_size, concentration), num_states)


def log(law: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law))


# -- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_probs", [True, False])
@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_one_token_has_the_targets_law(concentration: float, has_probs: bool) -> None:
    """N = 100,000, V = 32: finds a residual that is not subtracted, or is p without the drafted token; acceptance by
    u < p, or always; p-threshold 1e-6. At concentration 0.1 the target and the draft law have different supports.
    """
    target, drafted = laws(1, 1, 32, concentration), laws(2, 1, 32, concentration)
    target[0, 3] = 0.0
    target /= target.sum()
    rng = np.random.default_rng(3)
    bench = Bench(np.repeat(log(target), 32, axis=0), [SamplingParams()] * NUM_ROWS)
    counts = np.zeros(32, dtype=np.int64)
    for _ in range(100_000 // NUM_ROWS):
        draft = markov_draft(drafted, np.zeros(NUM_ROWS, dtype=np.int64), 1, rng)
        verified = bench.step(draft if has_probs else without_probs(draft))
        counts += np.bincount(verified.tokens[:, 0], minlength=32)
    assert goodness_of_fit(counts, target[0]) > 1e-6


@pytest.mark.parametrize("has_probs", [True, False])
def test_three_tokens_have_the_targets_joint_law(has_probs: bool) -> None:
    """N = 100,000 over 125 cells, four drafts a step: finds a wrong position, and a bonus token of the wrong law."""
    target, drafted = laws(4, 5, 5, 0.7), laws(5, 5, 5, 0.7)
    rng = np.random.default_rng(6)
    bench = Bench(log(target), [SamplingParams()] * NUM_ROWS)
    counts = np.zeros((5, 5, 5), dtype=np.int64)
    for _ in range(100_000 // NUM_ROWS):
        starts = bench.restart()
        while len(rows := np.flatnonzero(bench.lengths < starts + 3)):
            draft = markov_draft(drafted, bench.last[rows], 4, rng)
            bench.step(draft if has_probs else without_probs(draft), rows)
        first, second, third = (bench.tokens[np.arange(NUM_ROWS), starts + index] for index in range(3))
        np.add.at(counts, (first, second, third), 1)
    joint = target[0][:, None, None] * target[:, :, None] * target[None]
    assert goodness_of_fit(counts.ravel(), joint.ravel()) > 1e-6


def test_acceptance_is_one_minus_total_variation() -> None:
    """N = 50,000: alpha within 4 deviations, and every draft of the target's own law is accepted."""
    target, drafted = laws(7, 1, 32, 1.0), laws(8, 1, 32, 1.0)
    alpha = np.minimum(target, drafted).sum()
    params, start = [SamplingParams()] * 50_000, np.zeros(50_000, dtype=np.int64)
    bench = Bench(np.repeat(log(target), 32, axis=0), params, capacity=4)
    accepted = bench.step(markov_draft(drafted, start, 1, np.random.default_rng(9))).num_accepted
    assert accepted.mean() == pytest.approx(alpha, abs=4 * np.sqrt(alpha * (1 - alpha) / 50_000))
    bench = Bench(np.repeat(log(target), 32, axis=0), params[:1000], capacity=9)
    own = np.repeat(target, 32, axis=0)
    assert (bench.step(markov_draft(own, start[:1000], 3, np.random.default_rng(9))).num_accepted == 3).all()


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_k": 5}, {"top_k": 99}, {"top_p": 0.5}, {"top_p": 0.9}])
def test_filters_come_before_the_ratio(options: dict[str, float]) -> None:
    """Emitted tokens are in the allowed set, and the one-token law is the filtered one (N = 20,000)."""
    target, drafted = laws(10, 1, 120, 0.5), laws(11, 1, 120, 0.5)
    params = SamplingParams(**options)  # type: ignore[arg-type]
    bench = Bench(np.repeat(log(target), 120, axis=0), [params] * 20_000, capacity=9)
    draft = markov_draft(np.repeat(drafted, 120, axis=0), np.zeros(20_000, dtype=np.int64), 2, np.random.default_rng(1))
    verified = bench.step(draft)
    order = np.argsort(-target[0])
    before = target[0][order].cumsum() - target[0][order]
    keep = order[: int(options["top_k"])] if "top_k" in options else order[before < options["top_p"]]
    law = np.zeros(120)
    law[keep] = target[0][keep] / target[0][keep].sum()
    assert set(verified.tokens[verified.tokens >= 0].tolist()) <= set(keep.tolist())
    if len(keep) > 1:
        assert goodness_of_fit(np.bincount(verified.tokens[:, 0], minlength=120), law) > 1e-6


# -- the same tokens as without speculation ---------------------------------------------------------------------------


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=1.5, top_k=4),
    SamplingParams(top_p=0.8, frequency_penalty=0.5),
    SamplingParams(temperature=0, repetition_penalty=1.4, presence_penalty=0.3),
    SamplingParams(min_p=0.1, logit_bias={3: 1.0}),
] * 4


def plain_tokens(target: FloatArray, params: Sequence[SamplingParams], num_tokens: int) -> list[list[int]]:
    bench = Bench(target, params)
    for _ in range(num_tokens):
        bench.step(no_draft(len(params)))
    return [bench.output(row, num_tokens) for row in range(len(params))]


def test_deterministic_drafts_change_no_token() -> None:
    """Ragged drafts of 0 to 5 tokens, half of them guessed right, over 200 tokens of 24 different rows."""
    target = np.random.default_rng(12).normal(0, 2, (11, 11))
    expected = plain_tokens(target, MIXED, 200)
    rng = np.random.default_rng(13)
    bench, num_accepted = Bench(target, MIXED), 0
    while bench.lengths.min() <= 200:
        tokens = rng.integers(0, 11, (len(MIXED), 5))
        for row, length in enumerate(bench.lengths.tolist()):
            ahead = expected[row][length - 1 :][: rng.integers(0, 6)]
            tokens[row, : len(ahead)] = ahead
        num_accepted += int(bench.step(Draft(tokens, rng.integers(0, 6, len(MIXED)))).num_accepted.sum())
    assert [bench.output(row, 200) for row in range(len(MIXED))] == expected
    assert num_accepted > 1000


def test_greedy_rows_stay_greedy_with_probs_and_next_to_random_rows() -> None:
    target, drafted = np.random.default_rng(14).normal(0, 2, (11, 11)), laws(15, 11, 11, 1.0)
    expected = plain_tokens(target, MIXED, 200)
    rng = np.random.default_rng(16)
    bench = Bench(target, MIXED)
    while bench.lengths.min() <= 200:
        bench.step(markov_draft(drafted, bench.last, 3, rng))
    for row, params in enumerate(MIXED):
        if params.temperature == 0:
            assert bench.output(row, 200) == expected[row]


def test_a_row_emits_the_same_whatever_else_is_verified() -> None:
    target, drafted = np.random.default_rng(17).normal(0, 2, (11, 11)), laws(18, 11, 11, 1.0)
    draft = markov_draft(drafted, np.zeros(len(MIXED), dtype=np.int64), 4, np.random.default_rng(19))
    draft = Draft(draft.tokens, np.arange(len(MIXED)) % 5, draft.probs)
    together = Bench(target, MIXED).step(draft)
    for row in range(len(MIXED)):
        assert draft.probs is not None
        own = Draft(draft.tokens[[row]], draft.lens[[row]], draft.probs[[row]])
        assert Bench(target, MIXED).step(own, np.array([row])).tokens[0].tolist() == together.tokens[row].tolist()


# -- shapes, penalties, errors, scores --------------------------------------------------------------------------------


def successor_table(size: int) -> FloatArray:
    """A target that counts up: after t comes t + 1."""
    return np.asarray(np.roll(np.eye(size) * 5.0, 1, axis=1))


def test_ragged_drafts_are_padded_with_minus_one() -> None:
    bench = Bench(successor_table(8), [SamplingParams(temperature=0)] * 4)
    tokens = np.array([[1, 2, 3], [1, 5, 3], [9, 9, 9], [1, 7, 7]])
    verified = bench.step(Draft(tokens, np.array([3, 3, 0, 1])))
    assert verified.tokens.tolist() == [[1, 2, 3, 4], [1, 2, -1, -1], [1, -1, -1, -1], [1, 2, -1, -1]]
    assert verified.num_accepted.tolist() == [3, 1, 0, 1]


def test_no_draft_is_plain_sampling() -> None:
    bench = Bench(successor_table(8), [SamplingParams(temperature=0)] * 2)
    verified = bench.step(no_draft(2))
    assert verified.tokens.tolist() == [[1], [1]]
    empty = verify(bench.sampler, torch.zeros(0, 8), Entries.of(np.zeros(0, dtype=np.int64), no_draft(0)))
    assert empty.tokens.shape == (0, 1)


def test_the_frequency_penalty_counts_drafts_accepted_in_the_same_step() -> None:
    """The target likes 3 by 1.5 more than 4, so the second 3 in a row loses to 4, with 1.0 off for each time."""
    target = np.zeros((6, 6))
    target[:, 3], target[:, 4] = 5.0, 3.5
    bench = Bench(target, [SamplingParams(temperature=0, frequency_penalty=1.0)] * 2)
    verified = bench.step(Draft(np.array([[3, 3, 3], [3, 3, 4]]), np.array([3, 3])))
    assert verified.tokens.tolist() == [[3, 3, 4, -1], [3, 3, 4, 3]]


def test_masks_apply_at_each_position() -> None:
    bench = Bench(successor_table(8), [SamplingParams(temperature=0)])
    entries = Entries.of(np.array([0]), Draft(np.array([[1, 2, 3]]), np.array([3])))
    allowed = torch.ones(4, 8, dtype=torch.bool)
    allowed[1, 2] = False
    verified = verify(bench.sampler, bench.target[[0, 1, 2, 3]], entries, allowed)
    assert verified.tokens[0, 0] == 1 and verified.num_accepted[0] == 1 and verified.tokens[0, 1] != 2


def test_fitted_cuts_a_draft_to_its_allowance_and_at_unknown_tokens() -> None:
    tokens = np.array([[1, 2, 3, 4], [1, 8, 3, 4], [-1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 99, 99]])
    draft = fitted(Draft(tokens, np.array([4, 4, 4, 4, 2])), np.array([2, 4, 4, 0, 3]), vocab_size=8)
    assert draft.lens.tolist() == [2, 1, 0, 0, 2]
    assert draft.tokens.shape == (5, 2)


@pytest.mark.parametrize(
    ("draft", "sentence"),
    [
        (Draft(np.zeros((2, 1), dtype=np.int64), np.ones(3, dtype=np.int64)), r"tokens \[3, k\] and lens \[3\]"),
        (Draft(np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.int64)), r"tokens \[3, k\]"),
        (
            Draft(np.zeros((3, 1), dtype=np.int64), np.ones(3, dtype=np.int64), torch.ones(3, 1, 9)),
            r"must be \[3, 1, 8\], are \[3, 1, 9\]",
        ),
        (
            Draft(
                np.zeros((3, 1), dtype=np.int64),
                np.ones(3, dtype=np.int64),
                parents=np.zeros((3, 1), dtype=np.int64),
            ),
            "is a tree",
        ),
    ],
)
def test_a_draft_of_the_wrong_shape_is_refused(draft: Draft, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fitted(draft, np.ones(3, dtype=np.int64), vocab_size=8)


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0, float("inf")])
def test_a_law_that_is_none_costs_drafts_but_no_wrong_token(value: float) -> None:
    target = laws(20, 1, 12, 0.5)
    target[0, 6:] = 0.0
    bench = Bench(np.repeat(log(target), 12, axis=0), [SamplingParams()] * 50)
    tokens = np.random.default_rng(21).integers(0, 12, (50, 2))
    verified = bench.step(Draft(tokens, np.full(50, 2), torch.full((50, 2, 12), value)))
    assert verified.errors == {}
    assert (verified.num_accepted == 0).all() and verified.tokens.max() < 6


@pytest.mark.parametrize("has_probs", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_a_failed_entry_matters_only_where_it_is_reached(temperature: float, has_probs: bool) -> None:
    bench = Bench(successor_table(9), [SamplingParams(temperature=temperature)] * 3)
    tokens = np.array([[1, 2], [4, 2], [1, 2]])
    probs = torch.nn.functional.one_hot(torch.from_numpy(tokens), 9).double() if has_probs else None
    entries = Entries.of(np.arange(3), Draft(tokens, np.array([2, 2, 2]), probs))
    logits = bench.target[[0, 1, 2, 0, 4, 2, 0, 1, 2]].clone()
    logits[1], logits[4] = torch.nan, torch.nan
    verified = verify(bench.sampler, logits, entries)
    assert list(verified.errors) == [0]
    assert "at output position 1" in verified.errors[0]
    assert verified.tokens.tolist() == [[-1, -1, -1], [1, -1, -1], [1, 2, 3]]


def test_scores_are_of_the_emitted_tokens() -> None:
    target, drafted = np.random.default_rng(22).normal(0, 1, (9, 9)), laws(23, 9, 9, 1.0)
    params = [SamplingParams(logprobs=2 if row % 2 else None) for row in range(20)]
    bench = Bench(target, params)
    draft = markov_draft(drafted, bench.last, 3, np.random.default_rng(24))
    entries = Entries.of(np.arange(20), draft)
    verified = bench.step(draft)
    assert verified.scores is not None
    expected = [
        (int(entries.starts[row]) + index, token)
        for row in range(1, 20, 2)
        for index, token in enumerate(verified.tokens[row, : verified.num_accepted[row] + 1].tolist())
    ]
    assert verified.scores.entries.tolist() == [entry for entry, _ in expected]
    logprobs = torch.from_numpy(target).log_softmax(-1)
    for place, (entry, token) in enumerate(expected):
        row, offset = entries.owner[entry], entries.offsets[entry]
        last = 0 if offset == 0 else int(draft.tokens[row, offset - 1])
        assert verified.scores.values.logprobs[place] == pytest.approx(float(logprobs[last, token]))
