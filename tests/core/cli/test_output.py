import json
import math

import pytest
from switchgear.core.cli.output import print_json, print_table


def test_columns_are_as_wide_as_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "name"), [("long", "x"), ("b", "")])
    assert capsys.readouterr().out == "a     name\nlong  x\nb\n"


def test_what_json_has_no_number_for_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": (1.5, math.nan, [-math.inf]), "b": {"c": math.inf, "d": None, "e": True}})
    assert json.loads(capsys.readouterr().out) == {
        "a": [1.5, None, [None]],
        "b": {"c": None, "d": None, "e": True},
    }
