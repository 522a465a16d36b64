import json
from pathlib import Path

import pytest

from .ended import RunCommand

HERE = ("--dtype", "float32", "--set", "engine.kv_bytes=4000000")
SMALL = ("--num-requests", "3", "--input-len", "20", "--output-len", "3", "--first-rate", "1000")


def test_each_probe_is_stated_and_then_the_result(command: RunCommand, tiny_model: Path) -> None:
    never = ("--ttft", "1e-9", "--tpot", "1", "--max-probes", "2")
    ended = command("bench", "max-rate", "--model", tiny_model, *HERE, *SMALL, *never)
    assert ended.code == 1
    assert "objective: TTFT at most 1e-09 s, TPOT at most 1 s, by 90% of the requests" in ended.out
    table = ended.out.split("\n\n")[-2].splitlines()
    assert table[0].split() == ["rate", "attainment", "ttft", "p90", "tpot", "p90", "answered/s", "kept"]
    assert [(row.split()[0], row.split()[1], row.split()[-1]) for row in table[1:]] == [
        ("1000.000", "0.0%", "no"),
        ("500.000", "0.0%", "no"),
    ]
    assert ended.out.splitlines()[-1] == "no rate was found that keeps the objective: even 500.000 requests/s did not"


def test_in_json_lines(command: RunCommand, tiny_model: Path) -> None:
    always = ("--ttft", "1000", "--tpot", "1000", "--max-probes", "3", "--json")
    ended = command("bench", "max-rate", "--model", tiny_model, *HERE, *SMALL, *always)
    start, *probes, result = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert start["objective"] == {"ttft": 1000.0, "tpot": 1000.0, "attainment": 0.9}
    assert [(probe["rate"], probe["attainment"], probe["kept"]) for probe in probes] == [
        (1000.0, 1.0, True),
        (2000.0, 1.0, True),
        (4000.0, 1.0, True),
    ]
    assert (result["max_rate"], result["lowest_missed"], result["num_probes"]) == (4000.0, None, 3)
    assert result["plan"] == start["plan"] == probes[0]["plan"]
    # the prompts of each probe are new to the prefix cache
    assert {probe["metrics"]["prefix_hit_rate"] for probe in probes} == {0.0}


def test_texts_are_forgotten_between_probes(command: RunCommand, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(
        "".join(f"{number} is the number of this long prompt\n" for number in range(4))
    )
    ended = command(
        "bench", "max-rate", "--model", tiny_model, *HERE, "--workload", tmp_path / "prompts.txt", "--output-len", "2",
        "--ttft", "1000", "--tpot", "1000", "--max-probes", "2", "--json",
    )  # fmt: skip
    probes = [json.loads(line) for line in ended.out.splitlines()][1:-1]
    assert [probe["metrics"]["prefix_hit_rate"] for probe in probes] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--attainment", "2"), "the attainment is 2"),
        (("--max-probes", "0"), "0 probes find nothing"),
        (("--num-requests", "1"), "one request has no rate"),
    ],
)
def test_what_cannot_be_looked_for_is_one_sentence(
    command: RunCommand, tiny_model: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = command("bench", "max-rate", "--model", tiny_model, *HERE, "--ttft", "1", "--tpot", "1", *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"error: {sentence}")


def test_the_user_gives_no_rate_and_must_give_an_objective(command: RunCommand) -> None:
    for arguments in (("--rate", "1", "--ttft", "1", "--tpot", "1"), ("--ttft", "1")):
        with pytest.raises(SystemExit) as ended:
            command("bench", "max-rate", *arguments)
        assert ended.value.code == 2
