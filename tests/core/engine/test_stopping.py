import pytest
from switchgear.core.engine.stopping import Cut, cut, stop_ids
from switchgear.core.sampling_params import SamplingParams

EOS = 2
STOP = 7


def cut_of(tokens: list[int], params: SamplingParams, num_output: int = 0, max_model_len: int = 1000) -> Cut:
    return cut(
        tokens,
        num_prompt=10,
        num_output=num_output,
        params=params,
        stops=stop_ids(params, frozenset({EOS})),
        max_model_len=max_model_len,
    )


def test_an_output_without_a_reason_goes_on() -> None:
    assert cut_of([4, 5, 6], SamplingParams()) == Cut(3)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([EOS], Cut(1, "stop", EOS)),
        ([4, EOS, 5, 6], Cut(2, "stop", EOS)),
        ([4, STOP, EOS], Cut(2, "stop", STOP)),
        ([4, EOS, STOP], Cut(2, "stop", EOS)),
        ([4, 5, 6, EOS], Cut(4, "stop", EOS)),
    ],
)
def test_the_first_stop_token_cuts_and_belongs_to_the_output(tokens: list[int], expected: Cut) -> None:
    assert cut_of(tokens, SamplingParams(stop_token_ids=[STOP])) == expected


def test_max_tokens_cuts_what_is_too_much() -> None:
    assert cut_of([4, 5, 6], SamplingParams(max_tokens=8), num_output=6) == Cut(2, "length")


def test_max_tokens_reached_exactly_is_the_end() -> None:
    assert cut_of([4, 5], SamplingParams(max_tokens=8), num_output=6) == Cut(2, "length")


def test_the_models_length_counts_the_prompt() -> None:
    assert cut_of([4, 5, 6], SamplingParams(), num_output=3, max_model_len=15) == Cut(2, "length")


def test_a_stop_token_beyond_max_tokens_is_not_seen() -> None:
    assert cut_of([4, 5, EOS], SamplingParams(max_tokens=2)) == Cut(2, "length")


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    assert cut_of([4, EOS], SamplingParams(max_tokens=2)) == Cut(2, "stop", EOS)


def test_ignore_eos_goes_on_but_leaves_the_requests_own_stop_tokens() -> None:
    params = SamplingParams(ignore_eos=True, stop_token_ids=[STOP])
    assert cut_of([EOS, 4, STOP], params) == Cut(3, "stop", STOP)


def test_ignore_eos_does_not_take_back_eos_named_as_a_stop_token() -> None:
    assert cut_of([EOS, 4], SamplingParams(ignore_eos=True, stop_token_ids=[EOS])) == Cut(1, "stop", EOS)


def test_min_tokens_suppresses_eos_and_stop_tokens_until_met() -> None:
    """With 3 tokens before, positions 3 and 4 are under the minimum of 5; position 5 is not."""
    params = SamplingParams(min_tokens=5, stop_token_ids=[STOP])
    assert cut_of([EOS, STOP], params, num_output=3) == Cut(2)
    assert cut_of([EOS, STOP, EOS, 4], params, num_output=3) == Cut(3, "stop", EOS)


def test_several_tokens_at_once_end_where_one_at_a_time_would() -> None:
    params = SamplingParams(min_tokens=2, max_tokens=9, stop_token_ids=[STOP])
    for tokens in ([4, EOS, 5, STOP, 6], [EOS, EOS, EOS], [4] * 12, [STOP, 4, 5, 6, 7, 8]):
        single = [cut_of([token], params, num_output=index) for index, token in enumerate(tokens[:9])]
        end = next((index for index, result in enumerate(single) if result.reason), len(single) - 1)
        assert cut_of(tokens, params) == Cut(end + 1, single[end].reason, single[end].stop_token)
