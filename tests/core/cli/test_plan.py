from pathlib import Path

from switchgear import LLM

from .ended import Install, RunCommand

REFUSES = """
class Plugin:
    name = "picky"
    equivalence = TOKEN_EQUAL
    class Config(PluginConfig, frozen=True, kw_only=True): ...
    def __init__(self, config): ...
    @hookimpl
    def attention_impl(self): return Refusal(("it wants another processor",))
"""


def test_the_plan_is_the_one_that_an_engine_has(command: RunCommand, tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), dtype="float32", plugins={})
    asked = ("plan", "--model", tiny_model, "--dtype", "float32", "--recipe", "all_off")
    ended = command(*asked)
    assert (ended.code, ended.out, ended.err) == (0, f"{llm.plan}\n", "")
    table = command(*asked, "--json").json
    assert (table["hash"], table["environment"]) == (llm.plan.hash, llm.plan.environment)
    assert table["degraded"] == {}


def test_what_has_no_effect_is_refused_with_its_reason(command: RunCommand, tiny_model: Path, install: Install) -> None:
    install("picky", REFUSES)
    ended = command("plan", "--model", tiny_model, "--recipe", "all_off", "--on", "picky")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("error: plugin 'picky' is on and has no effect here: it wants another processor")


def test_what_may_degrade_is_planned_with_exit_code_3(command: RunCommand, tiny_model: Path, install: Install) -> None:
    install("picky", REFUSES)
    asked = (
        "plan",
        "--model",
        tiny_model,
        "--recipe",
        "all_off",
        "--on",
        "picky",
        "--set",
        "engine.allow_degrade=true",
    )
    ended = command(*asked)
    assert (ended.code, ended.err) == (3, "")
    assert ended.out.endswith("degraded  picky: it wants another processor\n")
    ended = command(*asked, "--json")
    assert (ended.code, ended.json["degraded"]) == (3, {"picky": "it wants another processor"})


def test_no_weights_are_read(command: RunCommand, tiny_model: Path, tmp_path: Path) -> None:
    weightless = tmp_path / "weightless"
    weightless.mkdir()
    for file in tiny_model.glob("*.json"):
        (weightless / file.name).write_bytes(file.read_bytes())
    (weightless / "model.safetensors").touch()
    assert command("plan", "--model", weightless).code == 0


def test_a_config_file_with_an_unknown_key_is_one_sentence(command: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[engine]\nmax_seqs = 3\n")
    ended = command("plan", "--config", file)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("error: [engine]: unknown option 'max_seqs' (did you mean 'max_num_seqs'?)")
