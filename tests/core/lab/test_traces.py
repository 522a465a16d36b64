"""Readers on small excerpts written here, and on the whole traces where they lie beside the checkout."""

import json
import math
from pathlib import Path

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.arrivals import Arrivals, mean_rate
from switchgear.core.lab.trace_files import is_trace, read_trace
from switchgear.core.lab.traces import from_trace
from switchgear.core.lab.workload import Workload

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 3]},
    {"timestamp": 2000, "input_length": 512, "output_length": 10, "hash_ids": [4]},
]


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text(AZURE)
    return tmp_path / "azure.csv"


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    (tmp_path / "mooncake.jsonl").write_text("".join(json.dumps(line) + "\n" for line in MOONCAKE))
    return tmp_path / "mooncake.jsonl"


def shape(workload: Workload) -> list[tuple[float, int, int]]:
    return [(ask.arrival, ask.num_prompt, ask.num_output) for ask in workload.asks]


def test_an_azure_trace_begins_at_its_first_request(azure: Path) -> None:
    workload = from_trace(azure)
    expected = [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]
    assert [row[1:] for row in shape(workload)] == [row[1:] for row in expected]
    assert [row[0] for row in shape(workload)] == pytest.approx([row[0] for row in expected], abs=2e-6)


def test_times_and_lengths_are_scaled(azure: Path) -> None:
    workload = from_trace(azure, time_scale=0.5, length_scale=0.1)
    assert [row[1:] for row in shape(workload)] == [(37, 4), (40, 11), (88, 6)]
    assert workload.asks[1].arrival == pytest.approx(2.15729, abs=1e-5)
    assert from_trace(azure, length_scale=1e-6).asks[0].num_output == 1


def test_long_requests_are_left_out_before_requests_are_counted(azure: Path) -> None:
    workload = from_trace(azure, num_requests=1, max_len=505)
    assert shape(workload) == [(0.0, 374, 44)]
    assert (workload.about["num_left_out"], workload.about["num_requests"]) == (1, 1)
    with pytest.raises(ConfigError, match="has 2 requests of at most 505 tokens, fewer than the 3 asked for"):
        from_trace(azure, num_requests=3, max_len=505)


def test_other_times_replace_those_of_the_trace(azure: Path) -> None:
    assert mean_rate(from_trace(azure, arrivals=Arrivals(10.0, 0.0))) == pytest.approx(10.0)
    assert from_trace(azure, arrivals=Arrivals(num_clients=2)).num_clients == 2


def test_the_tokens_are_of_the_seed_and_the_place_in_the_trace(azure: Path) -> None:
    assert from_trace(azure).fingerprint == from_trace(azure).fingerprint != from_trace(azure, seed=1).fingerprint
    later = from_trace(azure, max_len=460).asks[0]
    assert later.segments == from_trace(azure).asks[0].segments


def test_mooncake_prompts_share_the_blocks_that_the_trace_says(mooncake: Path) -> None:
    workload = from_trace(mooncake)
    assert shape(workload) == [(0.0, 1200, 52), (0.5, 1100, 3), (2.0, 512, 10)]
    first, second, third = (ask.token_ids(100, 30_000).tolist() for ask in workload.asks)
    assert first[:1024] == second[:1024]
    assert first[1024:1030] != second[1024:1030]
    assert third[:8] not in (first[:8], first[512:520])


def test_scaled_mooncake_prompts_still_share_whole_blocks(mooncake: Path) -> None:
    workload = from_trace(mooncake, length_scale=1 / 16)
    assert [[segment.num_tokens for segment in ask.segments] for ask in workload.asks] == [
        [32, 32, 11],
        [32, 32, 5],
        [32],
    ]
    assert workload.asks[0].segments[:2] == workload.asks[1].segments[:2]


def test_a_plain_csv_needs_no_times(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n30,4,7.5\n20,5,4.0\n")
    assert not read_trace(lengths).has_times
    assert shape(from_trace(lengths)) == [(0.0, 30, 4), (0.0, 20, 5)]
    timed = tmp_path / "timed.csv"
    timed.write_text("arrival,input_len,output_len\n7.5,30,4\n3.5,20,5\n")
    assert shape(from_trace(timed)) == [(0.0, 20, 5), (4.0, 30, 4)]


def test_dates_may_name_their_zone(tmp_path: Path) -> None:
    file = tmp_path / "zones.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 01:00:00.5+01:00,3,1\n2024-05-12 00:00:01+00:00,3,1\n2024-05-12 00:00:02,3,1\n"
    )
    assert [ask.arrival for ask in from_trace(file).asks] == [0.0, 0.5, 1.5]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "x,y\n1,2\n", "is no trace: its first line must name"),
        ("a.csv", "input_len,output_len\n", "has no requests"),
        ("a.csv", "input_len,output_len\n3,x\n", "line 2: this is no request of a trace .*'x'"),
        ("a.csv", "input_len,output_len\n3,1\n3\n", "line 3: this is no request"),
        ("a.csv", "input_len,output_len\n0,1\n", "line 2: a request of 0 and 1 tokens has nothing to do"),
        ("a.csv", "arrival,input_len,output_len\nsoon,1,1\n", "line 2: this is no request of a trace"),
        ("a.csv", "arrival,input_len,output_len\nnan,1,1\n", "'nan' is no time"),
        ("a.jsonl", '{"input_length": 3}\n', "line 1: this is no request of a trace .*timestamp"),
        (
            "a.jsonl",
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
            "513 tokens are 2 blocks of 512, and hash_ids has 1",
        ),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=sentence) as raised:
        from_trace(tmp_path / name)
    assert str(raised.value).count("line ") <= 1


def test_factors_must_be_more_than_nothing(azure: Path) -> None:
    for options in ({"time_scale": 0.0}, {"length_scale": -1.0}, {"length_scale": math.nan}):
        with pytest.raises(ConfigError, match="it must be more than 0"):
            from_trace(azure, **options)  # type: ignore[arg-type]


def test_traces_are_told_from_prompts(azure: Path, mooncake: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    assert (is_trace(azure), is_trace(mooncake), is_trace(prompts)) == (True, True, False)


# -- the whole traces: counts of their README -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "seconds", "mean_input", "mean_output", "hit_share"),
    [
        ("azure_llm_2023_code.csv", 8_819, 3_436, 2_048, 27.9, 0.0),
        ("azure_llm_2023_conv.csv", 19_366, 3_502, 1_155, 211, 0.0),
        ("mooncake_conversation_trace.jsonl", 12_031, 3_537, 12_035, 343, 0.366),
        ("mooncake_synthetic_trace.jsonl", 3_993, 1_022, 15_325, 149, 0.640),
        ("vidur_arxiv_summarization_lengths.csv", 28_257, 0, 2_588, 291, 0.0),
    ],
)
def test_the_whole_traces(
    shared_data: Path, name: str, count: int, seconds: float, mean_input: float, mean_output: float, hit_share: float
) -> None:
    workload = from_trace(shared_data / "traces" / name)
    assert len(workload.asks) == count
    assert workload.asks[-1].arrival == pytest.approx(seconds, abs=0.5)
    assert sum(ask.num_prompt for ask in workload.asks) / count == pytest.approx(mean_input, abs=0.5)
    assert sum(ask.num_output for ask in workload.asks) / count == pytest.approx(mean_output, abs=0.5)
    assert hit_share_of(workload) == pytest.approx(hit_share, abs=0.0005)


def hit_share_of(workload: Workload) -> float:
    """Segments found in a cache that never forgets, after the same segments, over all of them."""
    seen: set[int] = set()
    num_segments = num_hits = 0
    for ask in workload.asks:
        chain = 0
        for segment in ask.segments:
            chain = hash((chain, segment.key))
            # one that was found has all before it found too, since a chain is seen from its beginning on
            num_hits += chain in seen
            num_segments += 1
            seen.add(chain)
    return num_hits / num_segments
