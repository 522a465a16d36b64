"""`switchgear report`, from its command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from switchgear.core.cli.main import main
from switchgear.core.lab.report.spreadsheets import FILES

from ..made_results import write_results


def report(*arguments: str | Path) -> int:
    return main(["report", *map(str, arguments)])


def test_it_writes_what_it_is_asked_for_and_names_it(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(results, "--html", tmp_path / "page.html", "--csv", tmp_path / "tables") == 0
    paths = [*(tmp_path / "tables" / f"{name}.csv" for name in FILES), tmp_path / "page.html"]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    assert paths[-1].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_pictures_are_files_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = write_results(tmp_path / "results.jsonl", num_blocks=0)
    assert report(few, "--svg", tmp_path / "svg", "--png", tmp_path / "png") == 0
    assert capsys.readouterr().out == "" and (tmp_path / "png").is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to make: say where with --html OUT"),
        (["--csv", "{folder}", "--interval", "bca"], "BCa interval of 3 blocks"),
        (["--html", "{folder}/none/page.html"], "cannot write {folder}/none/page.html: No such file or directory"),
        (["--csv", "{file}/tables"], "cannot write {file}/tables: Not a directory"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_results(tmp_path / "results.jsonl", num_blocks=4)
    places = {"folder": tmp_path, "file": file}
    assert report(file, *(argument.format(**places) for argument in arguments)) == 1
    captured = capsys.readouterr()
    assert words.format(**places) in captured.err and captured.err.count("\n") == 1


def test_a_file_that_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert report(tmp_path / "other.jsonl", "--csv", tmp_path / "tables") == 1
    assert "no row of an ablation" in capsys.readouterr().err
    assert report(tmp_path / "none.jsonl", "--csv", tmp_path / "tables") == 1
    assert "No such file" in capsys.readouterr().err


def test_tables_need_no_matplotlib_and_the_page_names_it(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report(results, "--csv", tmp_path / "tables") == 0
    assert report(results, "--html", tmp_path / "page.html") == 1
    assert "pip install 'switchgear[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_an_unwritable_place_is_seen_before_the_page_is_drawn(results: Path, tmp_path: Path) -> None:
    assert report(results, "--html", tmp_path) == 1
