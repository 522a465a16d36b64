import csv
from pathlib import Path

import pytest
from switchgear.core.lab.analysis import Analysis
from switchgear.core.lab.report.spreadsheets import FILES, write_spreadsheets

from ..made_results import BROKEN, NUM_REQUESTS


@pytest.fixture(scope="module")
def folder(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "of" / "a_study"
    assert write_spreadsheets(analysis, folder) == [folder / f"{name}.csv" for name in FILES]
    return folder


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_effects_are_there_with_every_digit(analysis: Analysis, folder: Path) -> None:
    for row, effect in zip(rows(folder, "effects"), analysis.effects, strict=True):
        assert (row["switch"], row["metric"], row["cache"]) == (effect.switch, effect.metric, effect.cache)
        assert (float(row["ratio"]), float(row["low"])) == (effect.ratio, effect.low)
        assert (float(row["high"]), int(row["blocks"])) == (effect.high, effect.num_blocks)
        assert (row["significant"] == "True") == effect.is_significant


def test_interactions_are_there_with_every_digit(analysis: Analysis, folder: Path) -> None:
    found = [(row["first"], row["second"], row["metric"], float(row["ratio"])) for row in rows(folder, "interactions")]
    assert found == [(each.first, each.second, each.metric, each.ratio) for each in analysis.interactions]


def test_every_arm_has_its_verdict_or_its_refusal(analysis: Analysis, folder: Path) -> None:
    arms = {row["arm"]: row for row in rows(folder, "arms")}
    assert list(arms) == [arm.name for arm in analysis.arms]
    assert [name for name, row in arms.items() if row["holds"] == "False"] == [BROKEN]
    assert "ahead by 4.21" in arms[BROKEN]["problem"]
    refused = [name for name, row in arms.items() if row["refused"]]
    assert refused == ["prefix_cache", "prefix_cache + chunked_prefill"]
    assert all(arms[name]["holds"] == "" for name in refused)


def test_levels_and_single_requests_are_there(analysis: Analysis, folder: Path) -> None:
    levels = {(row["arm"], row["metric"]): float(row["median"]) for row in rows(folder, "metrics")}
    assert levels["all off", "ttft_p50"] == analysis.arms[0].metrics["ttft_p50"][0]
    times = [row for row in rows(folder, "requests") if row["arm"] == BROKEN and row["time"] == "tpot"]
    assert len(times) == analysis.num_blocks * NUM_REQUESTS


def test_voided_blocks_have_their_reason(folder: Path) -> None:
    (row,) = rows(folder, "voided_blocks")
    assert row["block"] == "2" and "31 %" in row["reason"]
