from typing import Any

import pytest

from .ended import Install, RunCommand

SOUND = """
class Plugin:
    \"\"\"Keeps the order.

    And nothing else.
    \"\"\"
    name = "orderly"
    equivalence = TOKEN_EQUAL
    requires = ("other",)
    conflicts = ()
    class Config(PluginConfig, frozen=True, kw_only=True):
        path: str
        \"\"\"Where it
        writes.\"\"\"
        size: Annotated[int, msgspec.Meta(ge=1)] | None = 16
        \"\"\"How many.\"\"\"
        names: list[str] = []
    def __init__(self, config): raise AssertionError("listing builds nothing")
    @hookimpl
    def schedule_step(self, limits): ...
    @hookimpl
    def on_ingress(self): ...
"""
NO_CONFIG = """
class Plugin:
    name = "unset"
    equivalence = TOKEN_EQUAL
    @hookimpl
    def observe(self): ...
"""
NO_LIBRARY = "raise ImportError('libmissing.so:\\n  cannot open')"


def line_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.split(maxsplit=3)


def test_a_plugin_is_listed_with_its_state_hooks_and_summary(command: RunCommand, install: Install) -> None:
    install("orderly", SOUND)
    text = "on_ingress, schedule_step  Keeps the order."
    ended = command("plugins")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("name ")
    assert line_of(ended.out, "orderly") == ["orderly", "orderly-distribution", "1.2", f"off    {text}"]
    ended = command("plugins", "--recipe", "all_off", "--on", "orderly")
    assert line_of(ended.out, "orderly")[3] == f"on     {text}"


@pytest.mark.parametrize(
    ("name", "source", "cause"),
    [
        ("lost", NO_LIBRARY, "cannot be imported: ImportError: libmissing.so: cannot open"),
        ("absent", "", "cannot be imported: AttributeError: module 'absent_module' has no attribute 'Plugin'"),
        ("unset", NO_CONFIG, "it needs a nested class `Config(PluginConfig)`"),
    ],
)
def test_a_broken_one_is_listed_with_its_cause_beside_the_others(
    command: RunCommand, install: Install, name: str, source: str, cause: str
) -> None:
    install("orderly", SOUND)
    install(name, source)
    ended = command("plugins")
    assert (ended.code, ended.err) == (0, "")
    assert line_of(ended.out, name)[3].split()[:2] == ["broken", "-"]
    assert cause in line_of(ended.out, name)[3]
    assert "Keeps the order." in ended.out

    for asked in (("plugins", name), ("run", "hello", "--on", name), ("plan", "--on", name)):
        ended = command(*asked)
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert ended.err.startswith("error: ") and cause in ended.err
    assert command("plan", "--on", name, "--debug").err.startswith("Traceback")


def test_json_has_the_same(command: RunCommand, install: Install) -> None:
    install("orderly", SOUND)
    install("lost", NO_LIBRARY)
    plugins: dict[str, dict[str, Any]] = {each["name"]: each for each in command("plugins", "--json").json}
    assert plugins["orderly"]["hooks"] == ["on_ingress", "schedule_step"]
    assert (plugins["orderly"]["problem"], plugins["orderly"]["is_on"]) == ("", False)
    assert "ImportError" in plugins["lost"]["problem"]


def test_one_plugin_is_shown_with_its_options(command: RunCommand, install: Install) -> None:
    install("orderly", SOUND)
    assert command("plugins", "orderly").out == (
        "orderly (orderly-distribution 1.2): Keeps the order.\n"
        "\n"
        "hooks        on_ingress, schedule_step\n"
        "equivalence  token_equal\n"
        "requires     other\n"
        "conflicts    with nothing\n"
        "\n"
        "[plugins.orderly]\n"
        "path: str, required\n"
        "    Where it writes.\n"
        "size: int >= 1 | None, default 16\n"
        "    How many.\n"
        "names: list[str], default []\n"
    )
    assert command("plugins", "orderly", "--json").json["options"][1] == {
        "name": "size",
        "type": "int >= 1 | None",
        "default": 16,
        "is_required": False,
        "description": "How many.",
    }


@pytest.mark.parametrize("arguments", [["orderlyy"], ["--on", "orderlyy"], ["orderly", "--on", "orderlyy"]])
def test_an_unknown_plugin_is_an_error_that_names_the_near_one(
    command: RunCommand, install: Install, arguments: list[str]
) -> None:
    install("orderly", SOUND)
    ended = command("plugins", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: unknown plugin 'orderlyy' (did you mean 'orderly'?)")


def test_a_name_that_two_distributions_take_is_an_error_that_names_both(command: RunCommand, install: Install) -> None:
    install("orderly", SOUND)
    other = install("twin", SOUND)
    (other / "twin_distribution-1.2.dist-info" / "entry_points.txt").write_text(
        "[switchgear.plugins]\norderly = twin_module:Plugin\n"
    )
    ended = command("plugins")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "orderly-distribution" in ended.err and "twin-distribution" in ended.err
