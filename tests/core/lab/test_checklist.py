"""The operator's checklist, on a recorded server and on what is different from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.checklist import FIRST_TOKEN, PER_TOKEN, WEEKLY, Check, Server, check_server
from switchgear.core.lab.cost_model import CostModel, Curve
from switchgear.core.lab.metrics_page import read_page

from .recorded_metrics import BUSY, FOREIGN, changed, plan_of

ALL_ON = ("continuous_batching", "paged_kv", "prefix_cache", "chunked_prefill", "flash_attention", "router", "answers")
PLAN = plan_of(*ALL_ON, attention_impl="flash_attention", route="router", quantize="int8", on_ingress="answers")
MODEL = CostModel("m", "by hand", "none", fixed=0.01, per_row=0.0, tokens=Curve((1, 101), (0.0, 0.5)))
"""10 ms, and 5 ms for each row after the first."""


def checks(page: str, plan: Mapping[str, Any] = PLAN, model: CostModel | None = MODEL) -> dict[tuple[str, str], Check]:
    server = Server(read_page(page), plan, model)
    return {(check.group, check.subject): check for check in check_server(server)}


def subjects(found: dict[tuple[str, str], Check], state: str) -> set[str]:
    return {subject for (_, subject), check in found.items() if check.state == state}


def test_every_question_of_the_list_is_there() -> None:
    assert list(checks(BUSY)) == [
        (FIRST_TOKEN, "time itself"),
        (FIRST_TOKEN, "queue"),
        (FIRST_TOKEN, "prompt lengths"),
        (FIRST_TOKEN, "cache hit rate"),
        (FIRST_TOKEN, "attention implementation"),
        (FIRST_TOKEN, "prefill bursts"),
        (PER_TOKEN, "time itself"),
        (PER_TOKEN, "effective batch size"),
        (PER_TOKEN, "KV residency"),
        (PER_TOKEN, "quantization level"),
        (PER_TOKEN, "memory-bound again"),
        (WEEKLY, "are predictable queries cached"),
        (WEEKLY, "is trivial work routed away"),
        (WEEKLY, "is decode packed"),
    ]


def test_a_healthy_server_is_told_its_numbers() -> None:
    page = (
        BUSY
        + 'switchgear_plugin{name="queries",plugin="answers"} 50\nswitchgear_plugin{name="hits",plugin="answers"} 5\n'
    )
    found = checks(page)
    assert subjects(found, "look") == subjects(found, "missing") == set()
    values = {subject: check.value for (_, subject), check in found.items()}
    assert found[FIRST_TOKEN, "time itself"].value == "p50 180.0 ms, p90 500.0 ms, p99 950.0 ms of 100"
    assert found[PER_TOKEN, "time itself"].value.startswith("p50 20.0 ms")
    assert values["queue"] == "20.0 ms of 200.0 ms on average, 10%"
    assert values["prompt lengths"].startswith("400 tokens on average")
    assert values["cache hit rate"].startswith("50% of prompt tokens")
    assert "45% of the tokens in steps are prefill" in values["prefill bursts"]
    assert values["effective batch size"] == "6.0 rows a step, 6.5 in the last seconds, at most 16"
    assert values["KV residency"].startswith("40% of the KV blocks")
    # 10 ms with one row, 35 ms with six
    assert "30.0 ms a step of 6.0 rows; by the cost model 29%" in values["memory-bound again"]
    assert values["are predictable queries cached"].startswith("answers answers 10%")
    assert values["is trivial work routed away"] == "router chooses the model; answers have 120 tokens on average"
    assert values["is decode packed"] == "6.0 of 16 rows a step, 38%; 0 wait now"


@pytest.mark.parametrize(
    ("group", "subject", "page", "plan", "remedy"),
    [
        (FIRST_TOKEN, "queue", changed(request_queue_seconds_sum=15.0), PLAN, "engine.max_num_seqs"),
        (FIRST_TOKEN, "queue", changed(request_queue_seconds_sum=15.0, kv_usage=0.95), PLAN, "engine.kv_bytes"),
        (FIRST_TOKEN, "queue", changed(request_queue_seconds_sum=15.0), plan_of(), "--on continuous_batching"),
        (FIRST_TOKEN, "prompt lengths", changed(prompt_tokens_total=4e5), PLAN, "prefix_cache"),
        (FIRST_TOKEN, "cache hit rate", BUSY, plan_of("paged_kv"), "--on prefix_cache"),
        (FIRST_TOKEN, "cache hit rate", changed(cached_prompt_tokens_total=0.0), PLAN, "first in the prompt"),
        (FIRST_TOKEN, "attention implementation", BUSY, plan_of(), "--on flash_attention"),
        (PER_TOKEN, "effective batch size", changed(engine_step_rows_total=31000.0), PLAN, "engine.max_num_seqs"),
        (PER_TOKEN, "KV residency", changed(kv_usage=0.97), PLAN, "engine.kv_bytes"),
        (PER_TOKEN, "KV residency", changed(preemptions_total=7.0), plan_of(), "--on paged_kv"),
        (PER_TOKEN, "quantization level", BUSY, plan_of(), "fewer bits"),
        (PER_TOKEN, "memory-bound again", changed(engine_step_rows_total=3000.0), PLAN, "fewer bits"),
        (WEEKLY, "are predictable queries cached", BUSY, plan_of(), "on_ingress"),
        (WEEKLY, "is trivial work routed away", BUSY, plan_of(), "a router"),
        (WEEKLY, "is decode packed", changed(engine_step_rows_total=3000.0), PLAN, "fewer replicas"),
        (
            WEEKLY,
            "is decode packed",
            changed(engine_step_rows_total=3000.0, requests_waiting=9.0),
            plan_of(),
            "--on continuous_batching",
        ),
    ],
)
def test_what_is_wrong_is_seen_and_has_a_switch(
    group: str, subject: str, page: str, plan: dict[str, Any], remedy: str
) -> None:
    check = checks(page, plan)[group, subject]
    assert check.state == "look"
    assert remedy in check.remedy
    assert check.meaning and check.value


@pytest.mark.parametrize(("plugins", "remedy"), [((), "--on chunked_prefill"), (ALL_ON, "max_num_batched_tokens")])
def test_bursts_are_seen_where_steps_are_prefill_and_some_outputs_wait(plugins: tuple[str, ...], remedy: str) -> None:
    page = changed(engine_step_tokens_total=48000.0)
    assert checks(page)[FIRST_TOKEN, "prefill bursts"].state == "look"
    check = checks(page, plan_of(*plugins))[FIRST_TOKEN, "prefill bursts"]
    assert remedy in check.remedy
    assert "75% of the tokens in steps are prefill" in check.value


def test_without_a_plan_and_a_cost_model_it_says_what_is_missing() -> None:
    found = checks(BUSY, {}, None)
    assert subjects(found, "missing") == {
        "attention implementation",
        "quantization level",
        "memory-bound again",
        "are predictable queries cached",
        "is trivial work routed away",
        "is decode packed",
    }
    assert "switchgear profile" in found[PER_TOKEN, "memory-bound again"].remedy


def test_a_server_that_served_nobody_yet_says_so() -> None:
    idle = "\n".join(line if line.startswith("#") else f"{line.rpartition(' ')[0]} 0.0" for line in BUSY.splitlines())
    found = checks(idle)
    assert subjects(found, "look") == {"are predictable queries cached"}
    assert {"time itself", "queue", "prompt lengths", "effective batch size"} <= subjects(found, "missing")
    assert "nothing counted yet" in found[FIRST_TOKEN, "prompt lengths"].value


def test_a_part_of_the_page_is_a_part_of_the_list() -> None:
    page = "# TYPE switchgear_kv_usage gauge\nswitchgear_kv_usage 0.2\n"
    found = checks(page)
    assert found[PER_TOKEN, "KV residency"].state == "ok"
    assert found[PER_TOKEN, "time itself"].value.startswith("switchgear_time_per_output_token_seconds: not there")


def test_the_page_of_another_program_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of switchgear's metrics is on that page, whose names begin with vllm"):
        checks(FOREIGN)
