"""Against a scripted server, where it is known what comes, and against our own with a tiny model."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.config import build_config
from switchgear.core.errors import ConfigError
from switchgear.core.lab import server_watch
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.bench_run import Run
from switchgear.core.lab.ledger import FOLLOWS_A_FAILURE
from switchgear.core.lab.over_http import run_over_http
from switchgear.core.lab.served import UNKNOWN, Served
from switchgear.core.lab.server_watch import Page
from switchgear.core.lab.targets import EngineTarget, ServerTarget
from switchgear.core.lab.workload import Workload
from switchgear.core.lab.workloads import conversations, fixed, from_prompts, shared_prefix

from .scripted_server import Asked, serving


class Model:
    """Answers every prompt with as many letters as tokens were asked for."""

    def __init__(self, *, counts: bool = True) -> None:
        self.counts = counts
        self.asked: list[Asked] = []
        self.metrics = ""
        self.can_tokenize = True

    async def __call__(self, asked: Asked) -> None:
        self.asked.append(asked)
        match asked.path:
            case "/v1/models":
                await asked.whole(200, {"data": [{"id": "scripted"}]})
            case "/metrics":
                await asked.whole(200 if self.metrics else 404, self.metrics.encode())
            case "/tokenize" if self.can_tokenize:
                await asked.whole(200, {"tokens": [ord(letter) for letter in asked.body["prompt"]]})
            case "/v1/completions" | "/v1/chat/completions":
                await self.complete(asked)
            case _:
                await asked.whole(404, {"error": {"message": "nothing here"}})

    async def complete(self, asked: Asked) -> None:
        is_chat = "messages" in asked.body
        if (count := asked.body["max_tokens"]) > 90:
            await asked.whole(400, {"error": {"message": "too many tokens"}})
            return
        await asked.begin_stream("x-switchgear-plan: abc\r\n")
        for number in range(count):
            piece = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            reason = "length" if number == count - 1 else None
            await asked.event({"choices": [{"index": 0, "finish_reason": reason, **piece}]})
        if self.counts:
            prompt = asked.body.get("prompt") or "12345678"
            usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
            await asked.event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 2}}})
        await asked.event(b"[DONE]")
        await asked.end_stream()

    def bodies(self, path: str = "/v1/completions") -> list[Any]:
        return [asked.body for asked in self.asked if asked.path == path]


def run_on(server: Any, workload: Workload, **options: Any) -> Run:
    async def run() -> Run:
        async with serving(server) as url:
            return await run_over_http(f"{url}/v1", workload, **options)

    return asyncio.run(run())


def test_requests_of_random_tokens() -> None:
    model = Model()
    workload = fixed(3, 8, 5)
    told: list[Served] = []
    run = run_on(model, workload, vocab_size=512, on_served=told.append)
    assert [served.index for served in run.served] == [0, 1, 2] == sorted(served.index for served in told)
    for served, ask in zip(run.served, workload.asks, strict=True):
        assert (served.num_prompt, served.num_output, served.num_cached) == (8, 5, 2)
        assert (served.text, served.finish_reason, served.error) == ("xxxxx", "length", "")
        assert len(served.token_times) == 5 and list(served.token_times) == sorted(served.token_times)
        assert 0 <= served.due <= served.sent <= served.token_times[0] <= served.finished <= run.seconds
        body = next(body for body in model.bodies() if body["prompt"] == ask.token_ids(64, 512).tolist())
        expected = {"model": "scripted", "max_tokens": 5, "temperature": 0, "stream": True, "ignore_eos": True}
        assert {key: body[key] for key in expected} == expected
    assert run.plan_hash == "abc" and run.environment == "" and run.extras == {}
    assert run.metrics()["prefix_hit_rate"] == 0.25 and run.metrics()["client_cpu_seconds"] > 0


def test_a_server_that_counts_nothing() -> None:
    (served,) = run_on(Model(counts=False), fixed(1, 8, 5)).served
    assert (served.num_prompt, served.num_output, served.num_cached) == (8, 5, UNKNOWN)


def test_the_end_of_text_is_only_ignored_where_that_is_asked_for() -> None:
    model = Model()
    run_on(model, fixed(1, 8, 5, ignore_eos=False), model="other")
    assert "ignore_eos" not in model.bodies()[0] and model.bodies()[0]["model"] == "other"
    assert "/v1/models" not in {asked.path for asked in model.asked}


def test_a_closed_loop_has_as_many_requests_open_as_clients() -> None:
    num_open, most = 0, 0

    class Slow(Model):
        async def complete(self, asked: Asked) -> None:
            nonlocal num_open, most
            num_open += 1
            most = max(most, num_open)
            await asyncio.sleep(0.01)
            num_open -= 1
            await super().complete(asked)

    run = run_on(Slow(), fixed(9, 4, 2, arrivals=Arrivals(num_clients=3)))
    assert most == 3 and len(run.served) == 9
    assert sum(served.due == 0.0 for served in run.served) == 3


def test_conversations_of_tokens_go_on_with_the_tokens_of_the_answer() -> None:
    model = Model()
    workload = conversations(1, 3, 6, 2)
    run = run_on(model, workload)
    assert [served.error for served in run.served] == [""] * 3
    first, second, third = (body["prompt"] for body in model.bodies())
    assert second[:8] == [*first, 120, 120] and third[:16] == [*second, 120, 120]
    assert [len(prompt) for prompt in (first, second, third)] == [6, 14, 22]
    dues = [served.due for served in run.served]
    assert dues[1] >= run.served[0].finished and dues[2] >= run.served[1].finished


def test_conversations_of_tokens_need_a_server_that_tokenizes() -> None:
    model = Model()
    model.can_tokenize = False
    with pytest.raises(ConfigError, match="need a server with POST /tokenize"):
        run_on(model, conversations(1, 2, 6, 2))
    assert model.bodies() == []


def test_texts_and_conversations_of_text(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "One?"}\n{"turns": ["Hello", "Again"]}\n')
    model = Model()
    run = run_on(model, from_prompts(file, 3))
    assert [served.error for served in run.served] == [""] * 3
    assert [body["prompt"] for body in model.bodies()] == ["One?"]
    user, again = ({"role": "user", "content": text} for text in ("Hello", "Again"))
    answer = {"role": "assistant", "content": "xxx"}
    chats = model.bodies("/v1/chat/completions")
    assert [body["messages"] for body in chats] == [[user], [user, answer, again]]


def test_what_the_server_refuses_is_an_error_of_that_request_and_its_conversation() -> None:
    refused = run_on(Model(), fixed(2, 4, 91))
    assert [served.error for served in refused.served] == ["status 400: too many tokens"] * 2
    run = run_on(Model(), conversations(1, 3, 4, 91))
    assert [served.error for served in run.served] == ["status 400: too many tokens", *[FOLLOWS_A_FAILURE] * 2]
    assert run.is_whole and run.metrics()["errors"] == 3.0


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("cut", "the server ended the connection in the middle of an answer"),
        ("early", "the server ended the stream before the output"),
        ("error", "no luck"),
        ("late", "the server did not answer in time"),
    ],
)
def test_a_stream_that_breaks_is_an_error(how: str, sentence: str) -> None:
    class Broken(Model):
        async def complete(self, asked: Asked) -> None:
            await asked.begin_stream()
            await asked.event({"choices": [{"text": "x"}]})
            if how == "cut":
                raise ConnectionAbortedError
            if how == "error":
                await asked.event({"error": {"message": "no luck"}})
            if how == "late":
                await asyncio.sleep(30)
            await asked.end_stream()

    (served,) = run_on(Broken(), fixed(1, 4, 3), request_seconds=0.2 if how == "late" else 60.0).served
    assert served.error == sentence


def test_a_run_that_is_stopped_leaves_and_keeps_what_was_answered() -> None:
    class Stuck(Model):
        async def complete(self, asked: Asked) -> None:
            if len(self.bodies()) > 2:
                await asyncio.sleep(60)
            await super().complete(asked)

    told: list[Served] = []
    run = run_on(
        Stuck(),
        fixed(5, 4, 2, arrivals=Arrivals(num_clients=1)),
        on_served=told.append,
        should_stop=lambda: len(told) == 2,
    )
    assert not run.is_whole and len(run.served) == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ((401, {"error": {"message": "no key"}}), "does not list its models .status 401: no key.: name one"),
        ((200, {"models": []}), "does not list its models as OpenAI does"),
    ],
)
def test_a_server_that_names_no_model(body: tuple[int, dict[str, Any]], sentence: str) -> None:
    async def answer(asked: Asked) -> None:
        await asked.whole(*body)

    with pytest.raises(ConfigError, match=sentence):
        run_on(answer, fixed(1, 1, 1))


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1"):
        asyncio.run(run_over_http(f"http://127.0.0.1:{port}", fixed(1, 1, 1)))


# -- what our server tells ------------------------------------------------------------------------------------------


def page(steps: int, rows: int, preempted: int, drafted: int, usage: float = 0.0, running: int = 0) -> str:
    return f"""# HELP switchgear_engine_steps_total Steps.
switchgear_plan_info{{environment="e",hash="h",model="/a model",version="0.1"}} 1.0
switchgear_engine_steps_total {steps}.0
switchgear_engine_step_rows_total {rows}.0
switchgear_preemptions_total {preempted}.0
switchgear_kv_usage {usage}
switchgear_requests_running {running}.0
switchgear_plugin{{name="drafted",plugin="ngram"}} {drafted}.0
switchgear_plugin{{name="accepted",plugin="ngram"}} {drafted / 2}
switchgear_outputs_total{{finish_reason="stop"}} 3.0
"""


def test_the_servers_own_figures_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "SECONDS", 0.01)

    class Ours(Model):
        metrics = ""

        async def complete(self, asked: Asked) -> None:
            self.metrics = page(30, 80, 7, 50, usage=0.5, running=2)
            while sum(each.path == "/metrics" for each in self.asked) < 3:
                await asyncio.sleep(0.001)
            self.metrics = page(40, 100, 7, 60, usage=0.9)
            await super().complete(asked)

    model = Ours()
    model.metrics = page(10, 20, 5, 20)
    run = run_on(model, fixed(1, 4, 2))
    assert run.extras == {"preemptions": 2.0, "batch_size": 80 / 30, "kv_residency": 0.5, "acceptance_rate": 0.5}
    assert run.environment == "e"


def test_a_counter_that_began_again_counts_from_nothing() -> None:
    assert Page(page(4, 9, 0, 0)).growth(Page(page(10, 20, 0, 0)), "engine_steps_total") == 4.0


# -- our own server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_server(tiny_model: Path) -> Iterator[str]:
    """A server of the recommended plugins, in processes of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "switchgear", "serve", "--model", str(tiny_model), "--dtype", "float32"]
    process = subprocess.Popen(
        [*words, "--port", str(port), "--set", "engine.kv_bytes=4000000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail("the server did not become ready")


@pytest.mark.slow
def test_our_own_server_serves_what_the_engine_in_this_process_does(real_server: str, tiny_model: Path) -> None:
    overrides = [f"model.name={tiny_model}", "model.dtype=float32", "engine.kv_bytes=4000000"]
    workload = shared_prefix(4, 32, 8, 6, arrivals=Arrivals(num_clients=1))
    options: Any = {"model": None, "api_key": "", "vocab_size": 512, "request_seconds": 60.0}
    there = ServerTarget(real_server, workload, **options).run(workload)
    target = EngineTarget(build_config(recipe="recommended", overrides=overrides))
    here = target.run(workload)
    assert there.plan_hash == here.plan_hash and there.environment == here.environment
    assert [served.error for served in there.served] == [""] * 4
    assert [served.text for served in there.served] == [served.text for served in here.served]
    assert [served.num_cached for served in there.served] == [served.num_cached for served in here.served]
    assert [served.num_output for served in there.served] == [6] * 4
    assert there.extras["batch_size"] == here.extras["batch_size"] == 1.0
    assert set(here.metrics()) - set(there.metrics()) <= {"queue_wait_p50", "queue_wait_p99", "kv_residency"}
    target.close()


@pytest.mark.slow
def test_a_conversation_with_our_own_server_hits_its_prefix_cache(real_server: str) -> None:
    run = asyncio.run(run_over_http(real_server, conversations(2, 3, 40, 4, seed=9), vocab_size=512))
    assert [served.error for served in run.served] == [""] * 6
    for conversation in (run.served[:3], run.served[3:]):
        assert conversation[0].num_cached == 0
        # the prompt before it, in whole blocks, is there; an answer read again may be in other tokens
        assert all(later.num_cached >= (before.num_prompt - 1) // 16 * 16 for before, later in pairwise(conversation))


@pytest.mark.slow
def test_our_own_server_answers_conversations_of_text(real_server: str, tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text('{"turns": ["Hello", "Again"]}\n{"prompt": "One, two,"}\n')
    run = asyncio.run(run_over_http(real_server, from_prompts(tmp_path / "turns.jsonl", 5)))
    assert [served.error for served in run.served] == [""] * 3
    assert run.served[1].num_prompt > run.served[0].num_prompt + run.served[0].num_output
