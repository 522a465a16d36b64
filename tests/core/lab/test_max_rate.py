import math
from typing import Any

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.max_rate import Bracket, Search, max_rate


class Server:
    """Keeps the objective up to a rate."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.rates: list[float] = []

    def __call__(self, rate: float, number: int) -> float:
        assert number == len(self.rates)
        self.rates.append(rate)
        return 0.95 if rate <= self.limit else 0.2


@pytest.mark.parametrize("limit", [0.013, 0.9, 1.0, 7.3, 500.0])
@pytest.mark.parametrize("precision", [0.01, 0.2])
def test_the_limit_is_bracketed_as_closely_as_asked(limit: float, precision: float) -> None:
    server = Server(limit)
    bracket = max_rate(server, Search(precision=precision, max_probes=40))
    assert bracket.kept is not None and bracket.missed is not None
    assert bracket.kept <= limit < bracket.missed <= bracket.kept * (1 + precision)
    assert bracket.num_probes == len(server.rates) < 25
    assert len(set(server.rates)) == len(server.rates)


def test_rates_are_doubled_and_then_bisected() -> None:
    server = Server(5.0)
    max_rate(server, Search(max_probes=6))
    assert server.rates == pytest.approx([1, 2, 4, 8, math.sqrt(32), math.sqrt(4 * math.sqrt(32))])


def test_rates_are_halved_while_nothing_is_kept() -> None:
    server = Server(0.3)
    bracket = max_rate(server, Search(first_rate=2.0, max_probes=4))
    assert server.rates == [2.0, 1.0, 0.5, 0.25]
    assert bracket == Bracket(kept=0.25, missed=0.5, num_probes=4)


def test_probes_run_out_on_either_side() -> None:
    assert max_rate(Server(math.inf), Search(max_probes=3)) == Bracket(kept=4.0, missed=None, num_probes=3)
    assert max_rate(Server(0.0), Search(max_probes=3)) == Bracket(kept=None, missed=0.25, num_probes=3)


def test_the_attainment_decides_up_to_its_bound() -> None:
    search = Search(attainment=0.9, max_probes=1)
    assert max_rate(lambda *_: 0.9, search).kept == 1.0
    assert max_rate(lambda *_: 0.899, search).missed == 1.0


def test_a_probe_that_is_stopped_ends_the_search_with_what_is_known() -> None:
    results = iter([1.0, None])
    assert max_rate(lambda *_: next(results), Search()) == Bracket(kept=1.0, missed=None, num_probes=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attainment": 0.0}, "the attainment is 0"),
        ({"attainment": 1.1}, "the attainment is 1.1"),
        ({"first_rate": 0.0}, "the first rate is 0"),
        ({"precision": 0.0}, "the precision is 0"),
        ({"max_probes": 0}, "0 probes find nothing"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Search(**options)
