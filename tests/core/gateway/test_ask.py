from __future__ import annotations

from typing import Any

import pytest
from switchgear.core.gateway.ask import Ask

MESSAGE = {"role": "user", "content": "12345"}


@pytest.mark.parametrize(
    ("ask", "size"),
    [
        (Ask(prompt="12345"), 5),
        (Ask(prompt=(7, 8)), 2),
        (Ask(messages=(MESSAGE,)), len("roleusercontent12345")),
    ],
)
def test_characters_and_token_ids_are_counted(ask: Ask, size: int) -> None:
    assert ask.size == size


@pytest.mark.parametrize("hidden", ["x" * 1000, {"x" * 1000: 1}, [1] * 1000, [{"a": ["x" * 999, None]}]])
def test_what_the_template_gets_beside_the_messages_counts_too(hidden: Any) -> None:
    plain = Ask(messages=(MESSAGE,)).size
    assert Ask(messages=(MESSAGE,), template={"tools": hidden}).size >= plain + 1000
    assert Ask(messages=({**MESSAGE, "reasoning_content": hidden},)).size >= plain + 1000


def test_a_deep_template_is_counted_all_the_same() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert Ask(messages=(MESSAGE,), template={"tools": deep}).size > 0
