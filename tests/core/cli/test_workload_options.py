from argparse import ArgumentParser
from pathlib import Path

import pytest
from switchgear.core.cli.workload_options import OWN, TAKES, add_workload_options, workload_from
from switchgear.core.errors import ConfigError
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.traces import from_trace
from switchgear.core.lab.workload import Workload
from switchgear.core.lab.workloads import conversations, fixed, from_prompts, shared_prefix


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text("arrival,input_len,output_len\n0,40,4\n2,20,5\n3,900,5\n")
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [3]}\n')
    (tmp_path / "prompts.jsonl").write_text('{"question": "Why?"}\n{"turns": ["a", "b"]}\n')
    (tmp_path / "prompts.txt").write_text("One?\nTwo?\n")
    return tmp_path


def workload(*arguments: str | Path) -> Workload:
    parser = ArgumentParser()
    add_workload_options(parser)
    return workload_from(parser.parse_args([str(argument) for argument in arguments]))


def test_without_options_it_is_requests_of_one_length() -> None:
    assert workload() == fixed(64, 128, 64)


def test_each_kind_that_is_made() -> None:
    lengths = ("--num-requests", "3", "--input-len", "8", "--output-len", "4", "--seed", "7")
    assert workload(*lengths) == fixed(3, 8, 4, seed=7)
    assert workload(*lengths, "--workload", "shared-prefix", "--prefix-len", "32", "--num-prefixes", "2") == (
        shared_prefix(3, 32, 8, 4, num_prefixes=2, seed=7)
    )
    assert workload(*lengths, "--workload", "conversations", "--num-turns", "2", "--prefix-len", "16") == (
        conversations(3, 2, 8, 4, prefix_len=16, seed=7)
    )


def test_arrivals_and_the_end_of_text() -> None:
    small = ("--num-requests", "4")
    assert workload(*small, "--rate", "2") == fixed(4, 128, 64, arrivals=Arrivals(2.0))
    assert workload(*small, "--rate", "2", "--variation", "3") == fixed(4, 128, 64, arrivals=Arrivals(2.0, 3.0))
    assert workload(*small, "--clients", "2") == fixed(4, 128, 64, arrivals=Arrivals(num_clients=2))
    assert workload(*small, "--stop-at-eos") == fixed(4, 128, 64, ignore_eos=False)


def test_a_file_is_known_by_what_is_in_it(files: Path) -> None:
    assert workload("--workload", files / "trace.csv") == from_trace(files / "trace.csv")
    assert workload("--workload", files / "trace.jsonl") == from_trace(files / "trace.jsonl")
    assert workload("--workload", files / "prompts.txt") == from_prompts(files / "prompts.txt", 64)
    chat = workload("--workload", files / "prompts.jsonl", "--chat", "--output-len", "5", "--num-requests", "1")
    assert chat == from_prompts(files / "prompts.jsonl", 5, num_requests=1, chat=True)


def test_a_trace_is_scaled_and_keeps_its_times_unless_others_are_given(files: Path) -> None:
    scales = ("--time-scale", "0.5", "--length-scale", "0.25", "--max-len", "100", "--num-requests", "2")
    scaled = workload("--workload", files / "trace.csv", *scales)
    assert [(ask.arrival, ask.num_prompt, ask.num_output) for ask in scaled.asks] == [(0.0, 10, 1), (1.0, 5, 1)]
    evenly = workload("--workload", files / "trace.csv", "--rate", "10", "--variation", "0")
    assert [ask.arrival for ask in evenly.asks] == pytest.approx([0.0, 0.1, 0.2])
    assert workload("--workload", files / "trace.csv", "--clients", "2").num_clients == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--workload", "nonsense"), "--workload nonsense is neither a file nor one of fixed, shared-prefix, conv"),
        (("--num-turns", "3"), "--num-turns has no effect on a workload of fixed"),
        (("--workload", "shared-prefix", "--time-scale", "2"), "--time-scale has no effect on a workload of shared"),
        (("--workload", "trace.csv", "--output-len", "2"), "--output-len has no effect on a workload of a trace"),
        (("--workload", "prompts.txt", "--input-len", "2"), "--input-len has no effect on a workload of prompts"),
        (("--workload", "trace.csv", "--time-scale", "2", "--rate", "1"), "--time-scale has no effect beside --rate"),
        (("--variation", "2"), "--variation has no effect without --rate"),
        (("--rate", "0"), "an arrival rate of 0"),
        (("--rate", "1", "--clients", "2"), "a closed loop has no rate"),
        (("--num-requests", "0"), "num_requests is 0"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    files: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(files)
    with pytest.raises(ConfigError, match=sentence):
        workload(*arguments)


def test_every_option_of_some_kinds_is_one_that_the_parser_has() -> None:
    parser = ArgumentParser()
    add_workload_options(parser)
    arguments = vars(parser.parse_args([]))
    assert all(arguments[option] is None for option in OWN)
    assert all(set(options) <= set(OWN) for options in TAKES.values())
