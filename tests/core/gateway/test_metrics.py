from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from switchgear.core.config import build_config
from switchgear.core.engine.client import EngineClient
from switchgear.core.engine.messages import Gauges
from switchgear.core.gateway.batch_size import WINDOW, EffectiveBatchSize
from switchgear.core.gateway.metrics import Metrics
from switchgear.core.gateway.results import Choice, Result, Timing


@pytest.fixture
def client(tiny_model: Path) -> Iterator[EngineClient]:
    """A client that never launched its engine."""
    config = build_config(sections={"model": {"name": str(tiny_model)}})
    client = EngineClient(config, on_emissions=lambda _: None, on_refused=lambda *_: None, on_down=lambda _: None)
    yield client
    asyncio.run(client.close())


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    families = text_string_to_metric_families(metrics.page().decode())
    return {
        "/".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in families
        for sample in family.samples
    }


def result_of(*choices: Choice) -> Result:
    return Result("r", (1, 2, 3), choices, "cafe", num_cached_tokens=2)


def choice_of(reason: str, tpot: float) -> Choice:
    timing = Timing(queue=0.02, ttft=0.2, tpot=tpot, total=1.0)
    return Choice(index=0, token_ids=(1,), text="", finish_reason=reason, logprobs=None, timing=timing)


def test_a_result_is_counted_once_and_each_of_its_outputs(client: EngineClient) -> None:
    metrics = Metrics(client)
    metrics.count_result(result_of(choice_of("stop", 0.02), choice_of("length", math.nan)), 1.25)
    found = samples(metrics)
    assert found["switchgear_request_seconds_sum"] == 1.25
    assert found["switchgear_request_queue_seconds_sum"] == 0.02
    assert found["switchgear_prompt_tokens_total"] == 3
    assert found["switchgear_cached_prompt_tokens_total"] == 2
    assert found["switchgear_outputs_total/stop"] == found["switchgear_outputs_total/length"] == 1
    # an output of one token has no time per token after it
    assert found["switchgear_time_per_output_token_seconds_count"] == 1


def test_the_engines_gauges_are_those_of_its_last_step(client: EngineClient) -> None:
    metrics = Metrics(client)
    client.gauges = Gauges(
        num_running=3, num_waiting=2, num_held=1, kv_used=5, kv_total=20, num_steps=7, num_preempted=4, num_restarts=1
    )
    found = samples(metrics)
    assert found["switchgear_requests_running"] == 3
    assert found["switchgear_requests_waiting"] == 2
    assert found["switchgear_requests_held"] == 1
    assert found["switchgear_kv_usage"] == 0.25
    assert found["switchgear_engine_steps_total"] == 7
    assert found["switchgear_preemptions_total"] == 4
    assert found["switchgear_engine_restarts_total"] == 1
    assert found["switchgear_engine_ready"] == 0


def test_plugins_count_under_their_own_names(client: EngineClient) -> None:
    metrics = Metrics(client)
    metrics.plugin_stats = {"prefix_cache": {"hits": 4.0}}
    assert samples(metrics)["switchgear_plugin/hits/prefix_cache"] == 4


def test_two_servers_in_one_process_do_not_share_counters(client: EngineClient) -> None:
    one, two = Metrics(client), Metrics(client)
    one.count_request("health", 200)
    assert samples(one)["switchgear_requests_total/health/200"] == 1
    assert "switchgear_requests_total/health/200" not in samples(two)


def test_the_page_has_a_help_for_each_metric_and_no_series_of_birthdays(client: EngineClient) -> None:
    page = Metrics(client).page().decode()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE switchgear")}
    assert names == {line.split()[2] for line in page.splitlines() if line.startswith("# HELP switchgear")}
    assert "_created" not in page


def test_the_effective_batch_size_is_rows_in_a_step_of_the_last_samples() -> None:
    size = EffectiveBatchSize()
    assert size.mean() == 0.0
    size.sample(Gauges(num_steps=10, step_rows=20))
    assert size.mean() == 2.0
    for _ in range(WINDOW):
        size.sample(Gauges(num_steps=10, step_rows=20))
    assert size.mean() == 0.0
    size.sample(Gauges(num_steps=15, step_rows=60))
    assert size.mean() == 8.0


def test_an_engine_that_began_anew_is_measured_anew() -> None:
    size = EffectiveBatchSize()
    size.sample(Gauges(num_steps=1000, step_rows=1000))
    size.sample(Gauges(num_steps=10, step_rows=40))
    assert size.mean() == 4.0
