"""A file that is whole up to its last line, and is not gone on with by who measures something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.results_file import FORMAT, ResultsFile, check_header, read_rows

HEADER = {"format": FORMAT, "design": "full", "budget_s": 1.0}


def begun(path: Path) -> Path:
    with ResultsFile(path) as file:
        file.append("header", **HEADER)
        file.append("end", reason="budget")
    return path


def test_rows_come_back_and_more_can_be_added(tmp_path: Path) -> None:
    path = begun(tmp_path / "out")
    with ResultsFile(path) as file:
        assert not file.is_empty
        assert file.append("void", block=0, reason="moved") == {"kind": "void", "block": 0, "reason": "moved"}
    assert [row["kind"] for row in read_rows(path)] == ["header", "end", "void"]


@pytest.mark.parametrize(
    "torn", [b'{"kind": "run", "bl', b'{"kind": "end", "reason": "whole but for its line break"}', b"\xff"]
)
def test_a_torn_last_line_is_left_out_and_dropped(torn: bytes, tmp_path: Path) -> None:
    path = begun(tmp_path / "out")
    with path.open("ab") as file:
        file.write(torn)
    assert len(read_rows(path)) == 2
    with ResultsFile(path) as results:
        results.append("end", reason="again")
    assert [row["reason"] for row in read_rows(path)[1:]] == ["budget", "again"]


def test_a_header_that_was_torn_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"kind": "header"')
    with ResultsFile(path) as file:
        assert file.is_empty


@pytest.mark.parametrize("line", ["not json", "[1]", '{"kind": "other"}', '{"block": 1}'])
def test_a_line_in_the_middle_that_is_no_row_is_an_error_that_names_it(line: str, tmp_path: Path) -> None:
    path = begun(tmp_path / "out")
    path.write_text(path.read_text() + line + "\n" + '{"kind": "end", "reason": ""}\n')
    with pytest.raises(ConfigError, match=r"line 3 of .* is no row of an ablation"):
        read_rows(path)


def test_what_is_no_result_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read results .*: No such file"):
        read_rows(tmp_path / "out")
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="does not begin with the header"):
        read_rows(tmp_path / "empty")
    (tmp_path / "newer").write_text('{"kind": "header", "format": 99}\n')
    with pytest.raises(ConfigError, match=f"is of format 99, this version reads format {FORMAT}"):
        read_rows(tmp_path / "newer")
    with pytest.raises(ConfigError, match=r"cannot write results to .*: No such file"):
        ResultsFile(tmp_path / "no" / "folder")


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "out"), pytest.raises(ConfigError, match="another run writes to"):
        ResultsFile(tmp_path / "out")


def test_a_header_may_differ_in_its_budget_and_in_nothing_that_was_measured(tmp_path: Path) -> None:
    check_header(tmp_path, HEADER, {**HEADER, "budget_s": 2.0})
    with pytest.raises(ConfigError, match='its design is "full", this run\'s is "one-in"'):
        check_header(tmp_path, HEADER, {**HEADER, "design": "one-in"})
    with pytest.raises(ConfigError, match="its keep is null"):
        check_header(tmp_path, HEADER, {**HEADER, "keep": ["a"]})
