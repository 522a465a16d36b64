"""The service on a real engine in its own process: the same answers as in this one, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.config import Config, build_config
from switchgear.core.engine.client import EngineDown
from switchgear.core.errors import RequestError
from switchgear.core.gateway.ask import Ask
from switchgear.core.gateway.service import DeadlineExceeded, Service, Visitor
from switchgear.core.records import Wait
from switchgear.core.registry import Bound

from .stages import outcomes, stage

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
PROMPT = (7, 8, 9, 10)


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> Config:
    return build_config(sections={"model": {"name": str(tiny_model), "dtype": "float32"}})


@contextlib.asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Service]:
    service = Service(config)
    service.launch()
    await service.start()
    try:
        yield service
        for _ in range(100):
            # an abort is seen before the next step
            if not service.client.gauges.num_running:
                break
            await asyncio.sleep(0.02)
        assert service.num_open == 0
        assert await service.client.audit() == []
    finally:
        await service.close()


def run(config: Config, test: Callable[[Service], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(config) as service:
            await test(service)

    asyncio.run(asyncio.wait_for(main(), 60))


def visitor(name: str, deadline: float | None = None) -> Visitor:
    return Visitor(request_id=name, deadline=deadline)


def test_the_same_answers_as_in_this_process(config: Config) -> None:
    params = SamplingParams(max_tokens=12, seed=3, n=2, logprobs=2, stop=["e"])
    asks = {"ids": Ask(prompt=PROMPT, params=params), "text": Ask(prompt="The switch", params=params)}
    with LLM.from_config(config) as llm:
        prompts: list[str | list[int]] = ["The switch", list(PROMPT)]
        expected = llm.generate(prompts, params)
        vectors = llm.embed(["The switch"], normalize=False)

    async def test(service: Service) -> None:
        streams = {name: await service.submit(ask, visitor(name)) for name, ask in asks.items()}
        pieces: dict[str, str] = dict.fromkeys(streams, "")
        for name, stream in streams.items():
            async for chunks in stream:
                for chunk in chunks:
                    assert chunk.logprobs is not None and len(chunk.logprobs) == len(chunk.token_ids)
                    pieces[name] += chunk.text if chunk.index == 1 else ""
            stream.close()
        for name, result in zip(("text", "ids"), expected, strict=True):
            got = streams[name].result
            assert [choice.token_ids for choice in got.choices] == [choice.token_ids for choice in result.choices]
            assert [choice.text for choice in got.choices] == [choice.text for choice in result.choices]
            assert pieces[name] == result.choices[1].text
            assert got.plan_hash == result.plan_hash
        embedded = await service.embed(Ask(prompt="The switch"), visitor("vector"), "mean")
        np.testing.assert_allclose(embedded.vector, vectors[0], atol=1e-5)
        assert embedded.num_tokens == len(expected[0].prompt_token_ids)

    run(config, test)


def test_without_a_limit_of_its_own_an_output_fills_the_context(config: Config) -> None:
    async def test(service: Service) -> None:
        ask = Ask(prompt=PROMPT, params=SamplingParams(temperature=0, ignore_eos=True), default_max_tokens=True)
        stream = await service.submit(ask, visitor("long"))
        result = await stream.whole()
        assert len(result.token_ids) + len(PROMPT) == service.plan.max_model_len
        assert result.finish_reason == "length"

    run(config, test)


def test_what_can_never_run_is_refused(config: Config) -> None:
    async def test(service: Service) -> None:
        for ask in (Ask(prompt=()), Ask(prompt=(10**6,)), Ask(prompt=PROMPT, params=SamplingParams(max_tokens=10**6))):
            with pytest.raises(RequestError):
                await (await service.submit(ask, visitor("bad"))).whole()
        with pytest.raises(RequestError, match="empty"):
            await service.embed(Ask(prompt=()), visitor("bad vector"), "mean")

    run(config, test)


def test_who_leaves_frees_the_request(config: Config) -> None:
    async def test(service: Service) -> None:
        streams = [await service.submit(Ask(prompt=PROMPT, params=LONG), visitor(f"{i}")) for i in range(4)]
        streams[0].close()  # before the first token
        await anext(streams[1])
        streams[1].close()
        for stream in streams[2:]:
            task = asyncio.create_task(stream.whole())
            await asyncio.sleep(0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            stream.close()
            stream.close()

    run(config, test)


def test_a_deadline_ends_the_request(config: Config) -> None:
    async def test(service: Service) -> None:
        soon = asyncio.get_running_loop().time() + 0.05
        stream = await service.submit(Ask(prompt=PROMPT, params=LONG), visitor("late", soon))
        with pytest.raises(DeadlineExceeded):
            await stream.whole()
        stream.close()
        with pytest.raises(DeadlineExceeded):
            await service.embed(Ask(prompt=PROMPT), visitor("late vector", soon), "mean")

    run(config, test)


def test_a_deadline_counts_while_a_stage_lets_the_request_wait(config: Config) -> None:
    stages = {"first": stage("first"), "second": stage("second", lambda request: Wait("nobody", 60.0))}

    async def test(service: Service) -> None:
        service.ingress.stages = tuple(Bound(name, cls(None)) for name, cls in stages.items())
        begin = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded):
            await service.submit(Ask(prompt=PROMPT, params=LONG), visitor("late", begin + 0.05))
        assert asyncio.get_running_loop().time() - begin < 5.0

    run(config, test)
    assert [outcome.kind for outcome in outcomes] == ["aborted"]


def test_an_engine_that_dies_fails_what_is_open_and_comes_back(config: Config) -> None:
    async def test(service: Service) -> None:
        streams = [await service.submit(Ask(prompt=PROMPT, params=LONG), visitor(f"{i}")) for i in range(3)]
        await anext(streams[0])
        child = service.client._child
        assert child is not None
        os.kill(child.process.pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDown, match="signal 9"):
                async with asyncio.timeout(1):
                    await stream.whole()
            stream.close()
        await service.client.wait_ready()
        stream = await service.submit(Ask(prompt=PROMPT, params=GREEDY), visitor("again"))
        assert len((await stream.whole()).token_ids) == 8

    run(config, test)
