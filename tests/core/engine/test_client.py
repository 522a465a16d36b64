"""The engine in a child process: the same answers, and what happens when it cannot start, dies, or is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from switchgear import LLM
from switchgear.core.engine.child import private_folder
from switchgear.core.engine.client import EngineClient, EngineDown
from switchgear.core.errors import ConfigError
from switchgear.core.sampling_params import SamplingParams

from .listening import PATIENCE, Listener, ask, client_of, config_of, serving, until

T = TypeVar("T")


def pid_of(client: EngineClient) -> int:
    assert client.pid is not None
    return client.pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # an orphan that nobody has buried yet does not run
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()


class Session:
    """One engine for several tests, each of which takes the loop on."""

    def __init__(self, model: Path) -> None:
        self.runner = asyncio.Runner()
        self.serving = serving(config_of(model))
        self.client, self.listener = self.run(self.serving.__aenter__())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def close(self) -> None:
        self.run(self.serving.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def session(tiny_model: Path) -> Iterator[Session]:
    session = Session(tiny_model)
    yield session
    session.close()


def test_the_client_imports_no_torch() -> None:
    code = "import switchgear.core.engine.client, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


# -- an engine that does well -----------------------------------------------------------------------------------------


def test_plan_tokens_and_scores_are_those_of_an_engine_in_this_process(session: Session, tiny_model: Path) -> None:
    client, listener = session.client, session.listener
    params = SamplingParams(max_tokens=6, seed=3, n=2, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    prompt = np.arange(3, 40)

    async def serve() -> None:
        client.add("r", prompt, params, tenant="t", priority=1)
        await until(lambda: len(listener.reasons("r")) == 2)

    session.run(serve())
    with LLM.from_config(config_of(tiny_model)) as llm:
        assert client.plan == llm.plan and client.plan is not None
        assert client.limits is not None and client.limits.max_model_len == 256
        result = llm.generate(prompt.tolist(), params)[0]
    assert [listener.tokens("r", child) for child in (0, 1)] == [list(choice.token_ids) for choice in result.choices]
    scores = [each.scores for each in listener.emissions["r"] if each.child == 0 and each.scores is not None]
    assert result.choices[0].logprobs is not None
    assert [float(score.logprobs[0]) for score in scores] == [
        each.chosen.logprob for each in result.choices[0].logprobs
    ]
    assert (
        sum(len(each.prompt_scores.ranks) for each in listener.emissions["r"] if each.prompt_scores) == len(prompt) - 1
    )


def test_a_vector_arrives_as_float32(session: Session, tiny_model: Path) -> None:
    async def serve() -> None:
        session.client.add("v", np.arange(5), SamplingParams(max_tokens=1), pooling="mean")
        await until(lambda: session.listener.reasons("v"))

    session.run(serve())
    (emission,) = session.listener.emissions["v"]
    assert emission.finish_reason == "stop" and emission.pooled is not None
    assert emission.pooled.dtype == np.float32 and emission.pooled.shape == (64,)


def test_a_request_that_can_never_run_is_refused(session: Session) -> None:
    async def serve() -> None:
        session.client.add("empty", np.arange(0), SamplingParams())
        session.client.add("long", np.arange(255), SamplingParams(max_tokens=9))
        await until(lambda: len(session.listener.refused) == 2)

    session.run(serve())
    assert session.listener.refused["empty"] == "the prompt is empty: send at least one token"
    assert "together exceed max_model_len (256)" in session.listener.refused["long"]


def test_an_abort_frees_the_request_and_the_numbers_show_it(session: Session) -> None:
    client, listener = session.client, session.listener

    async def serve() -> None:
        ask(client, "short", num_tokens=2)
        ask(client, "endless", num_tokens=240)
        await until(lambda: listener.emissions["endless"])
        assert client.gauges.num_running >= 1 and client.gauges.kv_used > 0
        client.abort("endless")
        client.abort("nobody")
        await until(lambda: listener.reasons("endless") and listener.reasons("short"))
        assert await client.audit() == []

    session.run(serve())
    assert (listener.reasons("endless"), listener.reasons("short")) == (["abort"], ["length"])
    gauges = client.gauges
    assert (gauges.num_running, gauges.num_waiting, gauges.num_held, gauges.num_restarts) == (0, 0, 0, 0)
    assert gauges.kv_used == 0 and gauges.kv_total == client.plan.kv_num_blocks  # type: ignore[union-attr]  # is ready
    assert gauges.step_tokens >= gauges.step_rows >= gauges.num_steps > 0 and gauges.step_seconds > 0


def test_commands_counters_and_errors_cross_the_border(session: Session) -> None:
    async def call() -> None:
        assert set((await session.client.stats())["prefix_cache"]) >= {"hits", "queries"}
        await session.client.control("prefix_cache", "reset", {})
        with pytest.raises(
            ConfigError, match=r"^unknown command of plugin 'prefix_cache' 'rest' \(did you mean 'reset'"
        ):
            await session.client.control("prefix_cache", "rest", {})

    session.run(call())


def test_where_the_time_goes_is_told(session: Session) -> None:
    startup = session.client.startup
    assert set(startup) == {"spawn", "import", "resolve", "assemble", "load", "total"}
    assert max(startup.values()) == startup["total"] and min(startup.values()) > 0


def test_signals_of_the_terminal_are_for_the_gateway_to_decide(session: Session) -> None:
    async def serve() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid_of(session.client), number)
        ask(session.client, "after")
        await until(lambda: session.listener.reasons("after"))

    session.run(serve())


# -- an engine that ends ----------------------------------------------------------------------------------------------


def test_one_that_dies_is_replaced_until_the_limit(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(config_of(tiny_model), max_restarts=1) as (client, listener):
            for name in "abcd":
                ask(client, name, num_tokens=200)
            await until(lambda: len(listener.emissions) == 4)
            stats = asyncio.ensure_future(client.stats())
            pid, killed = pid_of(client), time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await until(lambda: listener.causes)
            ((noticed, cause),) = listener.causes
            assert noticed - killed < 1.0
            assert cause == "the engine was killed (signal 9), as the system does when memory runs out"
            assert client.state == "loading" and client.cause == cause
            with pytest.raises(EngineDown, match=r"^the engine (was killed|has ended)"):
                await stats
            with pytest.raises(
                EngineDown, match=r"^the engine is loading: try again in a few seconds \(the engine was k"
            ):
                ask(client, "too early")
            client.abort("a")

            await client.wait_ready()
            assert pid_of(client) != pid and not is_running(pid)
            assert (client.num_restarts, client.gauges.num_restarts) == (1, 1)
            ask(client, "new")
            await until(lambda: listener.reasons("new"))
            assert not any(listener.reasons(name) for name in "abcd")

            # an error in its loop, which is no plugin's and no request's
            assert client._child is not None
            client._child.pair.send(b"garbage")
            await until(lambda: client.state == "failed")
            _, (_, cause) = listener.causes
            assert cause.startswith("the engine ended with status 1: msgspec.ValidationError: Expected `object`")
            limit = "it is not started again, since the limit is 1 restarts in 300 seconds"
            assert client.cause == f"{cause}; {limit}"
            with pytest.raises(EngineDown, match=limit):
                ask(client, "too late")
            with pytest.raises(EngineDown, match=limit):
                await client.wait_ready()
            with pytest.raises(EngineDown, match=limit):
                await client.audit()

    asyncio.run(main())
    assert "engine: Traceback (most recent call last):\n" in capsys.readouterr().err
    (told,) = caplog.messages
    assert told.startswith("the engine was killed (signal 9)") and told.endswith("it is started again (1 of 1)")


def test_one_that_dies_while_it_loads_is_started_again_and_old_restarts_are_forgotten(tiny_model: Path) -> None:
    async def main() -> None:
        listener = Listener()
        client = client_of(config_of(tiny_model), listener, max_restarts=1, per_seconds=0.05)
        await client.start()
        for count in (1, 2):
            os.kill(pid_of(client), signal.SIGKILL)
            await until(lambda: len(listener.causes) == count)  # noqa: B023  # awaited at once
            assert (client.state, client.num_restarts) == ("loading", count)
            await asyncio.sleep(0.1)
        await client.close()

    asyncio.run(main())


def test_one_that_cannot_start_says_why_and_is_not_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        listener = Listener()
        client = client_of(config_of(tmp_path / "nowhere"), listener)
        await client.start()
        with pytest.raises(EngineDown, match="nowhere") as refused:
            await client.wait_ready()
        assert "Traceback" not in str(refused.value) and "\n" not in str(refused.value)
        assert (client.state, client.num_restarts, listener.causes) == ("failed", 0, [])
        pid = pid_of(client)
        await until(lambda: not is_running(pid))
        assert client.state == "failed"
        await client.close()

    asyncio.run(main())


def test_a_temporary_directory_that_cannot_be_used_is_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(ConfigError, match=r"too long for a socket in it: set TMPDIR"):
        private_folder()
    assert list(long.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"No such file or directory\): set TMPDIR"):
        private_folder()


def test_it_can_be_closed_while_it_loads_and_twice(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)

    async def main() -> None:
        client = client_of(config_of(tiny_model), Listener())
        client.launch()
        pid, folder = pid_of(client), client._folder
        await client.start()
        waiting = asyncio.ensure_future(client.wait_ready())
        with pytest.raises(EngineDown, match=r"^the engine is loading: try again in a few seconds$"):
            ask(client, "early")
        with pytest.raises(EngineDown):
            await client.stats()
        environ = Path(f"/proc/{pid}/environ")
        if environ.exists():
            assert b"GOMP_SPINCOUNT=20000\0" in environ.read_bytes()
        assert oct(folder.stat().st_mode & 0o777) == "0o700"
        started = time.monotonic()
        await client.close()
        assert time.monotonic() - started < 3 and client.state == "closed"
        assert not is_running(pid) and not folder.exists()
        with pytest.raises(EngineDown, match="was stopped"):
            await waiting
        await client.close()
        client.abort("anything")
        with pytest.raises(EngineDown, match="was stopped"):
            ask(client, "late")

    asyncio.run(main())


def test_one_that_was_never_attached_to_a_loop_is_closed_too(tiny_model: Path) -> None:
    client = client_of(config_of(tiny_model), Listener())
    client.launch()
    asyncio.run(client.close())
    assert client.state == "closed" and not is_running(pid_of(client))


GATEWAY = """
import asyncio
from switchgear.core.config import build_config
from switchgear.core.engine.client import EngineClient

async def main():
    nothing = lambda *told: None
    config = build_config(sections={{"model": {{"name": {model!r}}}}})
    client = EngineClient(config, on_emissions=nothing, on_refused=nothing, on_down=nothing)
    client.launch()
    await client.start()
    if {waits}:
        await client.wait_ready()
    print(client.pid, client._folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("waits", [True, False], ids=["ready", "loading"])
def test_a_gateway_that_is_killed_leaves_no_orphan(tiny_model: Path, waits: bool) -> None:
    code = GATEWAY.format(model=str(tiny_model), waits=waits)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        pid, folder = gateway.stdout.readline().split()
        assert is_running(int(pid)) and Path(folder).is_dir()
        gateway.kill()
    deadline = time.monotonic() + PATIENCE
    while is_running(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int(pid)) and not Path(folder).exists()
