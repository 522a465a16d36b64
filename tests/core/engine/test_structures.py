"""Requests that ask for a structure: who gets them, when, and what becomes of them when a plugin fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from switchgear.core.config import PluginConfig
from switchgear.core.engine.engine import Engine
from switchgear.core.errors import PluginFault, RequestError
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import LogitsStage, takes_structures
from switchgear.core.records import TOKEN_EQUAL, BoolArray, IntArray
from switchgear.core.sampling_params import SamplingParams, Structure

from .build import virtual_engine
from .virtual import EOS, VOCAB_SIZE

PARAMS = SamplingParams(max_tokens=20, seed=1, structure=Structure("choice", "5 6 7"))


class Spelled:
    """Holds an output to the tokens that the structure's text lists."""

    name = "spelled"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        begin_limit: int = 100
        """Rows that may begin before the stage raises."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rows: dict[int, list[int]] = {}
        self.dropped: list[int] = []

    @hookimpl
    def logits(self) -> Spelled:
        return self

    def check_structure(self, structure: Structure) -> None:
        if structure.kind != "choice":
            raise ValueError(f"{structure.kind} is beyond it")
        if structure.text == "broken":
            raise RuntimeError("boom")

    def begin(self, row: int, structure: Structure) -> None:
        if len(self.rows) == self.config.begin_limit:
            raise RuntimeError("boom")
        self.rows[row] = [*map(int, structure.text.split()), EOS]

    def mask(self, rows: IntArray, drafts: tuple[IntArray, ...], offsets: IntArray) -> BoolArray | None:
        allowed = np.ones((len(rows), VOCAB_SIZE), dtype=np.bool_)
        for entry, row in enumerate(rows.tolist()):
            if row in self.rows:
                allowed[entry] = np.arange(VOCAB_SIZE) == self.rows[row][0]
        return allowed

    def advance(self, row: int, tokens: tuple[int, ...]) -> None:
        if row in self.rows:
            del self.rows[row][: len(tokens)]

    def drop(self, rows: IntArray) -> None:
        for row in rows.tolist():
            self.rows.pop(row, None)
            self.dropped.append(row)


class OnlyMasks:
    """A logits stage without the half that takes structures."""

    name = "only_masks"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def logits(self) -> LogitsStage:
        return self

    def mask(self, rows: IntArray, drafts: tuple[IntArray, ...], offsets: IntArray) -> BoolArray | None:
        return None

    def advance(self, row: int, tokens: tuple[int, ...]) -> None: ...

    def drop(self, rows: IntArray) -> None: ...


def spelled_of(engine: Engine) -> Spelled:
    [stage] = [stage.value for stage in engine.parts.logits_stages if stage.plugin == "spelled"]
    assert takes_structures(stage) and isinstance(stage, Spelled)
    return stage


def add(engine: Engine, params: SamplingParams, request: str = "a") -> None:
    engine.add(request, np.array([3, 4], dtype=np.int64), params)


def outputs(engine: Engine) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for emission in engine.step():
            assert not emission.error
            tokens.setdefault(emission.child, []).extend(emission.token_ids)
    assert engine.audit() == []
    return tokens


def test_every_output_of_a_request_keeps_to_its_structure() -> None:
    engine = virtual_engine(OnlyMasks, Spelled)
    add(engine, replace(PARAMS, n=3))
    assert outputs(engine) == {child: [5, 6, 7, EOS] for child in range(3)}
    assert spelled_of(engine).rows == {}


def test_a_preempted_row_goes_on_where_it_was() -> None:
    engine = virtual_engine(Spelled)
    add(engine, PARAMS)
    engine.step()
    assert engine.preempt_all() == 1 and spelled_of(engine).dropped == []
    assert outputs(engine) == {0: [6, 7, EOS]}


@pytest.mark.parametrize("classes", [(), (OnlyMasks,)])
def test_where_nobody_takes_structures_the_request_is_told_what_to_switch_on(classes: tuple[type, ...]) -> None:
    engine = virtual_engine(*classes)
    with pytest.raises(RequestError, match=r"^no plugin that is on holds .* \(choice\): switch on structured_output$"):
        add(engine, PARAMS)
    assert not engine.has_work


def test_a_structure_that_the_stage_refuses_is_a_refused_request() -> None:
    engine = virtual_engine(Spelled)
    with pytest.raises(RequestError, match=r"^the structure \(regex\) cannot be kept to: regex is beyond it$"):
        add(engine, replace(PARAMS, structure=Structure("regex", "a")))
    assert not engine.has_work and engine.audit() == []


def test_a_check_that_raises_is_a_fault_in_the_plugins_name() -> None:
    engine = virtual_engine(Spelled)
    with pytest.raises(PluginFault, match="plugin 'spelled' failed in check_structure: raised RuntimeError: boom"):
        add(engine, replace(PARAMS, structure=Structure("choice", "broken")))


def test_a_request_that_cannot_begin_whole_does_not_begin_at_all() -> None:
    engine = virtual_engine(Spelled, plugins={"spelled": {"begin_limit": 2}})
    with pytest.raises(PluginFault, match="plugin 'spelled' failed in begin: raised RuntimeError: boom"):
        add(engine, replace(PARAMS, n=3))
    stage = spelled_of(engine)
    assert stage.rows == {} and stage.dropped == [2, 1, 0]
    assert not engine.has_work and engine.audit() == []
    add(engine, PARAMS)
    assert outputs(engine) == {0: [5, 6, 7, EOS]}
