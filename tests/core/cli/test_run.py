import io
import shutil
from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams

from .ended import Install, RunCommand

GREEDY = ("--temperature", "0", "--max-tokens", "12", "--ignore-eos", "--dtype", "float32")
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "The switch"}]
RAISES = """
class Plugin:
    name = "raising"
    equivalence = TOKEN_EQUAL
    class Config(PluginConfig, frozen=True, kw_only=True): ...
    def __init__(self, config): ...
    @hookimpl
    def schedule_step(self): return self
    def revise(self, plan, view): raise ValueError("no\\n luck")
"""


@pytest.fixture
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), dtype="float32", plugins={})


def test_the_answer_is_what_the_python_api_gives(command: RunCommand, tiny_model: Path, llm: LLM) -> None:
    (expected,) = llm.chat(MESSAGES, PARAMS)
    ended = command("run", "The switch", "--model", tiny_model, *GREEDY)
    assert (ended.code, ended.out, ended.err) == (0, f"{expected.text}\n", "")


def test_raw_completes_the_text_itself(command: RunCommand, tiny_model: Path, llm: LLM) -> None:
    (expected,) = llm.generate("The switch", PARAMS)
    assert command("run", "The switch", "--raw", "--model", tiny_model, *GREEDY).out == f"{expected.text}\n"


def test_a_model_without_template_completes_the_text(command: RunCommand, tiny_model: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(tiny_model, tmp_path / "plain")
    (plain / "tokenizer_config.json").unlink()
    raw = command("run", "The switch", "--raw", "--model", tiny_model, *GREEDY)
    assert command("run", "The switch", "--model", plain, *GREEDY).out == raw.out


def test_json_is_one_object_with_the_whole_result(command: RunCommand, tiny_model: Path, llm: LLM) -> None:
    (expected,) = llm.chat(MESSAGES, PARAMS)
    table = command("run", "The switch", "--json", "--model", tiny_model, "--recipe", "all_off", *GREEDY).json
    assert table["prompt_token_ids"] == list(expected.prompt_token_ids)
    assert table["token_ids"] == list(expected.token_ids)
    assert (table["text"], table["finish_reason"]) == (expected.text, "length")
    assert (table["plan"], table["environment"]) == (llm.plan.hash, llm.plan.environment)
    assert 0 <= table["timing"]["queue"] <= table["timing"]["ttft"] <= table["timing"]["total"]
    assert table["timing"]["tpot"] > 0
    assert not {"choices", "logprobs", "prompt_logprobs", "error"} & set(table)


def test_the_tpot_of_one_token_is_null(command: RunCommand, tiny_model: Path) -> None:
    table = command("run", "The switch", "--json", "--model", tiny_model, "--max-tokens", "1").json
    assert table["timing"]["tpot"] is None


def test_log_probabilities_are_in_the_json(command: RunCommand, tiny_model: Path) -> None:
    asked = ("--logprobs", "2", "--prompt-logprobs", "0")
    table = command("run", "The switch", "--json", "--model", tiny_model, *GREEDY, *asked).json
    assert len(table["logprobs"]) == len(table["token_ids"])
    assert [each["chosen"]["token_id"] for each in table["logprobs"]] == table["token_ids"]
    assert {len(each["top"]) for each in table["logprobs"]} == {2}
    assert bytes(table["logprobs"][0]["chosen"]["token_bytes"]).decode(errors="replace") != ""
    assert len(table["prompt_logprobs"]) == len(table["prompt_token_ids"])
    assert table["prompt_logprobs"][0] is None


def test_log_probabilities_that_nobody_would_see_are_refused(command: RunCommand, tiny_model: Path) -> None:
    ended = command("run", "The switch", "--logprobs", "1", "--model", tiny_model)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: log probabilities are shown in JSON only: add --json\n"


def test_several_outputs_stand_behind_their_numbers(command: RunCommand, tiny_model: Path) -> None:
    asked = ("run", "The switch", "--model", tiny_model, "--n", "3", "--seed", "5", "--max-tokens", "8")
    table = command(*asked, "--json").json
    texts = [choice["text"] for choice in table["choices"]]
    assert len(set(texts)) == 3
    assert table["text"] == texts[0]
    assert command(*asked).out == "\n\n".join(f"[{index}] {text}" for index, text in enumerate(texts)) + "\n"


def test_a_stop_string_ends_the_answer(command: RunCommand, tiny_model: Path) -> None:
    whole = command("run", "The switch", "--model", tiny_model, *GREEDY).out
    stop = whole[5:8]
    ended = command("run", "The switch", "--model", tiny_model, *GREEDY, "--stop", stop, "--json")
    assert ended.json["text"] == whole[: whole.index(stop)]
    assert ended.json["finish_reason"] == "stop"


def test_a_dash_reads_standard_input(command: RunCommand, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = command("run", "The switch\nand more", "--json", "--model", tiny_model, *GREEDY).json
    monkeypatch.setattr("sys.stdin", io.StringIO("The switch\nand more\n"))
    read = command("run", "-", "--json", "--model", tiny_model, *GREEDY).json
    assert read["prompt_token_ids"] == given["prompt_token_ids"]


@pytest.mark.parametrize("prompt", ["", "-"])
def test_an_empty_prompt_is_refused(command: RunCommand, monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    ended = command("run", prompt)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: the prompt is empty: give a text, or - and a text on standard input\n"


def test_a_request_that_fails_is_told_once_and_is_exit_code_1(
    command: RunCommand, tiny_model: Path, install: Install
) -> None:
    install("raising", RAISES)
    asked = ("run", "The switch", "--model", tiny_model, "--on", "raising")
    sentence = "error: plugin 'raising' failed in revise: raised ValueError: no luck\n"
    ended = command(*asked)
    assert (ended.code, ended.out, ended.err) == (1, "\n", sentence)
    ended = command(*asked, "--json")
    assert (ended.code, ended.json["finish_reason"], ended.err) == (1, "error", sentence)
    assert ended.json["error"] == "plugin 'raising' failed in revise: raised ValueError: no luck"
    assert command("--debug", *asked).err.startswith("Traceback")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-tokens", "0"], "max_tokens must be an integer from 1"),
        (["--max-tokens", "9999"], "together exceed max_model_len"),
        (["--model", "no-such-model"], "unknown model 'no-such-model'"),
        (["--model", "./no/such/folder"], "./no/such/folder does not exist; check the path"),
        (["--on", "pagedkv"], "unknown plugin 'pagedkv'"),
        (["--set", "engine.max_seqs=3"], "[engine]: unknown option 'max_seqs'"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    command: RunCommand, tiny_model: Path, arguments: list[str], sentence: str
) -> None:
    ended = command("run", "hello", "--model", tiny_model, *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert sentence in ended.err
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1


def test_a_truncated_checkpoint_is_one_sentence(command: RunCommand, tiny_model: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    with (broken / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    ended = command("run", "hello", "--model", broken)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("error: ") and str(broken / "model.safetensors") in ended.err
