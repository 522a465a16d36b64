from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.keys import with_fresh_tokens
from switchgear.core.lab.prompt_ids import id_range
from switchgear.core.lab.workload import ALONE, Workload
from switchgear.core.lab.workloads import conversations, fixed, from_prompts, shared_prefix, warm_up_workload


def prompts_of(workload: Workload) -> list[list[int]]:
    return [ask.token_ids(10, 5000).tolist() for ask in workload.asks]


MADE: list[Callable[[int], Workload]] = [
    lambda seed: fixed(4, 16, 3, seed=seed, arrivals=Arrivals(2.0)),
    lambda seed: shared_prefix(4, 32, 8, 3, num_prefixes=2, seed=seed, arrivals=Arrivals(2.0)),
    lambda seed: conversations(2, 3, 8, 3, prefix_len=16, seed=seed, arrivals=Arrivals(2.0)),
]


@pytest.mark.parametrize("make", MADE)
def test_a_seed_gives_the_same_workload_and_another_seed_another(make: Callable[[int], Workload]) -> None:
    assert make(1) == make(1)
    assert make(1).fingerprint == make(1).fingerprint != make(2).fingerprint
    assert prompts_of(make(1)) == prompts_of(make(1))
    assert not set(map(tuple, prompts_of(make(1)))) & set(map(tuple, prompts_of(make(2))))


def test_fixed_requests_have_their_lengths_and_nothing_in_common() -> None:
    workload = fixed(20, 16, 3)
    prompts = prompts_of(workload)
    assert {len(prompt) for prompt in prompts} == {16} and {ask.num_output for ask in workload.asks} == {3}
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 20
    assert all(ask.conversation == ALONE and ask.ignore_eos for ask in workload.asks)


def test_prefixes_are_shared_in_turn_and_nothing_else_is() -> None:
    prompts = prompts_of(shared_prefix(6, 32, 8, 3, num_prefixes=2))
    assert {len(prompt) for prompt in prompts} == {40}
    first = [tuple(prompt[:32]) for prompt in prompts]
    assert first[0::2] == [first[0]] * 3 and first[1::2] == [first[1]] * 3 and first[0] != first[1]
    assert len({tuple(prompt[32:36]) for prompt in prompts}) == 6


def test_conversations_have_turns_of_their_own_after_one_beginning() -> None:
    workload = conversations(3, 2, 8, 3, prefix_len=16)
    assert [ask.conversation for ask in workload.asks] == [0, 0, 1, 1, 2, 2]
    assert [ask.num_prompt for ask in workload.asks] == [24, 8] * 3
    prompts = prompts_of(workload)
    assert prompts[0][:16] == prompts[2][:16] == prompts[4][:16]
    assert len({tuple(prompt[-8:]) for prompt in prompts}) == 6


def test_fresh_tokens_share_what_the_old_ones_shared_and_nothing_with_them() -> None:
    old = shared_prefix(4, 32, 8, 3, num_prefixes=2, arrivals=Arrivals(2.0))
    new = with_fresh_tokens(old, 1)
    assert with_fresh_tokens(old, 0) == old
    assert [ask.arrival for ask in new.asks] == [ask.arrival for ask in old.asks]
    before, after = prompts_of(old), prompts_of(new)
    assert [len(prompt) for prompt in after] == [len(prompt) for prompt in before]
    assert after[0][:32] == after[2][:32] != after[1][:32]
    assert not {tuple(prompt[:4]) for prompt in before} & {tuple(prompt[:4]) for prompt in after}
    assert new.fingerprint != with_fresh_tokens(old, 2).fingerprint


def test_random_tokens_stay_in_their_range() -> None:
    drawn = np.concatenate([ask.token_ids(64, 512) for ask in fixed(10, 100, 1).asks])
    assert drawn.min() >= 64 and drawn.max() < 512 and len(np.unique(drawn)) > 300
    large, small = id_range(49_152), id_range(512)
    assert (large.first, large.end) == (1000, 40_000)
    assert (small.first, small.end) == (64, 512)


def test_the_warm_up_fits_a_small_engine() -> None:
    assert [(ask.num_prompt, ask.num_output) for ask in warm_up_workload(4096).asks] == [(32, 8)] * 2
    assert [(ask.num_prompt, ask.num_output) for ask in warm_up_workload(2).asks] == [(1, 1)] * 2
    assert all(ask.text and not ask.segments for ask in warm_up_workload(40, has_text=True).asks)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fixed(0, 1, 1), "num_requests is 0: it must be at least 1"),
        (lambda: fixed(1, 0, 1), "input_len is 0"),
        (lambda: fixed(1, 1, 0), "output_len is 0"),
        (lambda: fixed(1, 1, 1, seed=-1), "seed is -1: it must be at least 0"),
        (lambda: shared_prefix(1, 0, 1, 1), "prefix_len is 0"),
        (lambda: conversations(1, 0, 1, 1), "num_turns is 0"),
        (lambda: conversations(1, 1, 1, 1, prefix_len=-1), "prefix_len is -1"),
    ],
)
def test_what_is_no_workload_is_refused(make: Callable[[], Workload], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


# -- prompts of a file ----------------------------------------------------------------------------------------------


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text("".join(f"Question {number}?\n" for number in range(30)))
    return file


def test_some_prompts_are_drawn_by_the_seed_in_the_order_of_the_file(questions: Path) -> None:
    some = [ask.text for ask in from_prompts(questions, 5, num_requests=10, seed=1).asks]
    everything = [ask.text for ask in from_prompts(questions, 5).asks]
    assert len(some) == 10 and len(everything) == 30
    assert some == [text for text in everything if text in set(some)]
    assert some == [ask.text for ask in from_prompts(questions, 5, num_requests=10, seed=1).asks]
    assert some != [ask.text for ask in from_prompts(questions, 5, num_requests=10, seed=2).asks]


def test_nothing_is_asked_twice(questions: Path) -> None:
    with pytest.raises(ConfigError, match="has 30 prompts, fewer than the 31 requests"):
        from_prompts(questions, 5, num_requests=31)


def test_turns_are_a_conversation_and_single_prompts_only_in_chat(questions: Path, tmp_path: Path) -> None:
    assert {ask.conversation for ask in from_prompts(questions, 5).asks} == {ALONE}
    assert len({ask.conversation for ask in from_prompts(questions, 5, chat=True).asks}) == 30
    turns = tmp_path / "bench.jsonl"
    turns.write_text('{"turns": ["a", "b"]}\n{"turns": ["c"]}\n')
    asks = from_prompts(turns, 5, ignore_eos=False).asks
    assert [(ask.text, ask.conversation, ask.ignore_eos) for ask in asks] == [
        ("a", 0, False),
        ("b", 0, False),
        ("c", ALONE, False),
    ]


def test_the_prompts_of_the_shared_data(shared_data: Path) -> None:
    folder = shared_data / "prompts"
    counts = {path.name: len(from_prompts(path, 8).asks) for path in sorted(folder.iterdir())}
    assert counts == {
        "HumanEval.jsonl.gz": 164,
        "arena_hard_v0.1_questions.jsonl": 500,
        "arena_hard_v2.0_questions.jsonl": 750,
        "gsm8k_test.jsonl": 1319,
        "mt_bench_questions.jsonl": 160,
        "vicuna_bench_questions.jsonl": 80,
    }
