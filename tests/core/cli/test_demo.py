import re
from pathlib import Path

from switchgear import LLM, SamplingParams
from switchgear.core.cli.demo import PROMPTS, times
from switchgear.core.gateway.results import Timing

from .ended import RunCommand


def test_every_prompt_is_answered_and_timed_and_the_plan_follows(command: RunCommand, tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), dtype="float32", plugins={})
    params = SamplingParams(temperature=0.0, max_tokens=48)
    ended = command("demo", "--model", tiny_model, "--dtype", "float32", "--recipe", "all_off")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{tiny_model} answers 3 prompts greedily")
    for prompt in PROMPTS:
        (result,) = llm.chat([{"role": "user", "content": prompt}], params)
        assert f"\n> {prompt}\n{result.text}\n[{len(result.token_ids)} tokens, TTFT " in ended.out
    assert len(re.findall(r"TTFT \d+ ms, TPOT \d+\.\d ms]", ended.out)) == len(PROMPTS)
    assert ended.out.endswith(f"\n\n{llm.plan}\n")


def test_a_single_token_has_no_time_per_token() -> None:
    assert times(Timing(queue=0.0, ttft=0.25, tpot=float("nan"), total=0.25)) == "TTFT 250 ms, TPOT none"
