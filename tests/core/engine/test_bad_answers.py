"""A method that answers nonsense fails its step like one that raises, in the name of its plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Draft, KVSpec, Limits, Slots

from .build import Heard, add, drain, step, virtual_engine
from .drafting import drafting
from .paged import PagedBlocks
from .test_invalid_plans import PARAMS
from .virtual import VOCAB_SIZE, tokens_alone

Answer = Callable[[Any], Any]
"""From the right answer to a wrong one."""


class Base:
    """A plugin whose answer is spoiled while `spoil` is set."""

    name = "spoiled"
    equivalence = TOKEN_EQUAL
    spoil: Answer | None = None

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        pass

    def answer(self, right: Any) -> Any:
        return right if self.spoil is None else self.spoil(right)


class Masks(Base):
    """Allows everything."""

    @hookimpl
    def logits(self) -> Masks:
        return self

    def mask(self, rows: Any, drafts: Any, offsets: Any) -> Any:
        return self.answer(np.ones((len(rows), VOCAB_SIZE), dtype=bool))

    def advance(self, row: int, tokens: tuple[int, ...]) -> None: ...

    def drop(self, rows: Any) -> None: ...


class Blocks(Base):
    """Paged blocks."""

    def kv_block_size(self, limits: Limits) -> int:
        return 4

    @hookimpl
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> PagedBlocks:
        blocks = PagedBlocks(len(spec), block_size, num_blocks)
        grow = blocks.grow
        blocks.grow = lambda row, num_tokens: self.answer(grow(row, num_tokens))  # type: ignore[method-assign]
        return blocks


class Drafts(Base):
    """Repeats."""

    def __init__(self, config: Base.Config) -> None:
        self.inner = drafting(lambda tokens, count: [int(tokens[-1])] * count)(config)

    @hookimpl
    def propose_tokens(self) -> Drafts:
        return self

    @hookimpl
    def schedule_step(self) -> Any:
        return self.inner

    def propose(self, view: Any, num_drafts: Any) -> Any:
        return self.answer(self.inner.drafter.propose(view, num_drafts))

    def commit(self, rows: Any, num_accepted: Any) -> None: ...

    def drop(self, rows: Any) -> None: ...


WRONG: list[tuple[type, Answer, str]] = [
    (Masks, lambda mask: mask[:, :-1], f"mask: returned something else than None or booleans [2, {VOCAB_SIZE}]"),
    (Masks, lambda mask: mask[:1], "mask: returned something else"),
    (Masks, lambda mask: mask.astype(np.int64), "mask: returned something else"),
    (Masks, lambda mask: mask.tolist(), "mask: returned something else"),
    (Blocks, lambda slots: (), "grow: returned (), Slots are needed"),
    (Blocks, lambda slots: Slots((*slots.blocks, ())), "Slots are needed"),
    (Blocks, lambda slots: Slots(((),)), "grow: returned room for 8 tokens where 9 are needed"),
    (Drafts, lambda draft: None, "propose: "),
    (Drafts, lambda draft: Draft(draft.tokens[:1], draft.lens), "propose: the draft must have tokens [2, k]"),
    (Drafts, lambda draft: Draft(draft.tokens, draft.lens[:1]), "propose: the draft must have tokens [2, k]"),
    (Drafts, lambda draft: Draft(draft.tokens[0], draft.lens), "propose: the draft must have tokens [2, k]"),
    (Drafts, lambda draft: Draft(draft.tokens, draft.lens, parents=draft.tokens), "propose: the draft is a tree"),
    (Drafts, lambda draft: Draft(draft.tokens.tolist(), draft.lens), "propose: "),
]


@pytest.mark.parametrize(("plugin", "spoil", "problem"), WRONG)
def test_nonsense_fails_the_step_in_the_name_of_its_plugin(
    plugin: type[Base], spoil: Answer, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: dict[str, Any] = {"num_blocks": 16, "block_size": 4} if plugin is Blocks else {}
    engine = virtual_engine(plugin, **pool)
    heard = Heard()
    for request in ("a", "b"):
        add(engine, request, [5] * 7, PARAMS)
    step(engine, heard)
    step(engine, heard)
    monkeypatch.setattr(plugin, "spoil", staticmethod(spoil))
    step(engine, heard)
    for request in ("a", "b"):
        assert heard.error(request).startswith("plugin 'spoiled' failed in ")
        assert problem in heard.error(request)
    monkeypatch.undo()
    add(engine, "next", [5] * 7, PARAMS)
    assert drain(engine, heard).output("next") == tokens_alone([5] * 7, PARAMS)
