"""docs/hooks.md says what core/hooks.py says, and its examples run."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.errors import PluginError
from switchgear.core.registry import HOOKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hooks.md").read_text()
HEAD, *SECTIONS = re.split(r"^## `", PAGE, flags=re.MULTILINE)
BY_HOOK = {section.partition("`")[0]: section for section in SECTIONS}
PROMPTS: list[str | list[int]] = ["The switch", [5, 6, 7, 8, 9], "a"]
PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def signatures() -> dict[str, str]:
    """Each spec as the page shows it, read from the code."""
    tree = ast.parse((ROOT / "core" / "hooks.py").read_text())
    specs = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        spec.name: f"{spec.name}({', '.join(map(ast.unparse, spec.args.args[1:]))}) -> {ast.unparse(spec.returns)}"
        for spec in specs.body
        if isinstance(spec, ast.FunctionDef) and spec.returns
    }


def code_of(text: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def example(hook: str) -> Any:
    """The plugin class of a hook's example."""
    names: dict[str, Any] = {"__name__": f"example_{hook}"}
    exec(code_of(HEAD) + code_of(BY_HOOK[hook]), names)
    [cls] = [
        value for value in names.values() if isinstance(value, type) and hook in vars(value) and "name" in vars(value)
    ]
    return cls


def test_every_hook_has_a_section_in_the_order_of_the_file() -> None:
    assert list(BY_HOOK) == list(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_the_signature_is_exact(hook: str) -> None:
    assert f"```text\n{signatures()[hook]}\n```" in BY_HOOK[hook]


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[tuple[int, ...]]:
    with LLM(str(tiny_model), dtype="float64", plugins={}) as llm:
        return [result.token_ids for result in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "route"])
def test_the_example_runs_and_changes_no_token(hook: str, tiny_model: Path, expected: list[tuple[int, ...]]) -> None:
    cls = example(hook)
    with LLM(str(tiny_model), dtype="float64", plugins={cls.name: {}}, plugin_classes=[cls]) as llm:
        assert [result.token_ids for result in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.audit() == []
        assert cls.name in {line.owner for line in llm.plan.hooks if line.hook == hook}


def test_a_router_is_refused_while_there_is_one_pool(tiny_model: Path) -> None:
    cls = example("route")
    with pytest.raises(PluginError, match=r"'least_waiting' is on and has no effect here"):
        LLM(str(tiny_model), plugins={cls.name: {}}, plugin_classes=[cls])
