"""A workload on a server that speaks OpenAI's API: ours, or any other, measured by the same client.

Prompts of token ids and single texts go to `/v1/completions`, conversations of text to `/v1/chat/completions`, all of
them streamed and greedy.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from typing import Any

from ..errors import ConfigError
from .agenda import Due
from .bench_run import OnServed, Run, ShouldStop, never
from .completion_stream import CompletionStream, message_of
from .http_client import FAILURES, Address, BrokenAnswer, HttpClient, told
from .in_process import LONGEST_WAIT, Said
from .ledger import Ledger
from .prompt_ids import id_range
from .served import UNKNOWN, Served
from .server_watch import ServerWatch
from .workload import ALONE, Ask, Workload

VOCAB_SIZE = 32_000
"""Ids below this are in the vocabulary of nearly every model."""
REQUEST_SECONDS = 600.0


async def run_over_http(
    url: str,
    workload: Workload,
    *,
    model: str | None = None,
    api_key: str = "",
    vocab_size: int = VOCAB_SIZE,
    request_seconds: float = REQUEST_SECONDS,
    on_served: OnServed | None = None,
    should_stop: ShouldStop = never,
) -> Run:
    """Serve the workload and note when what came.

    url: with or without `/v1`. model: as the server names it; None takes the first that it lists. vocab_size: random
    tokens are drawn from a vocabulary of so many. request_seconds: after which a request has failed. on_served: told of
    each request when it has ended. should_stop: asked ten times a second.

    Raises ConfigError for a server that cannot be reached or names no model.
    """
    client = HttpClient(Address.of(url), api_key)
    try:
        name = model or await first_model(client, url)
        run = OverHttp(client, workload, name, vocab_size, request_seconds, on_served, should_stop)
        return await run.run()
    finally:
        client.close()


async def first_model(client: HttpClient, url: str) -> str:
    """The first that the server lists. Raises ConfigError."""
    try:
        head, body = await client.request("GET", "/v1/models")
    except FAILURES as failure:
        raise ConfigError(f"cannot reach {url}: {told(failure)}") from None
    if head.status != 200:
        raise ConfigError(f"{url} does not list its models (status {head.status}: {message_of(body)}): name one")
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(f"{url} does not list its models as OpenAI does: name one") from None


class OverHttp:
    """One run. Times in it are seconds after its start."""

    def __init__(
        self,
        client: HttpClient,
        workload: Workload,
        model: str,
        vocab_size: int,
        request_seconds: float,
        on_served: OnServed | None,
        should_stop: ShouldStop,
    ) -> None:
        self.client = client
        self.workload = workload
        self.model = model
        self.ids = id_range(vocab_size)
        self.request_seconds = request_seconds
        self.should_stop = should_stop
        self.ledger = Ledger(workload, on_served)
        self.agenda = self.ledger.agenda
        self.said: dict[int, Said] = {}
        self.plan_hash = ""
        self.start = math.nan
        self.has_changed = asyncio.Event()
        """Something ended, so that more may be due."""
        self.open_requests: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return time.perf_counter() - self.start

    async def run(self) -> Run:
        await self.check_tokenize()
        watch = ServerWatch(self.client)
        await watch.start()
        cpu_seconds = time.process_time()
        self.start = time.perf_counter()
        try:
            await self.send_all()
        finally:
            for request in self.open_requests:
                request.cancel()
            await asyncio.gather(*self.open_requests, return_exceptions=True)
            cpu_seconds = time.process_time() - cpu_seconds
            await watch.stop()
        return Run(
            served=self.ledger.served,
            seconds=self.ledger.seconds,
            extras=watch.extras(),
            plan_hash=self.plan_hash or watch.after.plan.get("hash", ""),
            environment=watch.after.plan.get("environment", ""),
            client_cpu_seconds=cpu_seconds,
            is_whole=self.agenda.is_over,
        )

    async def send_all(self) -> None:
        while not self.agenda.is_over and not self.should_stop():
            for due in self.agenda.take(self.now()):
                request = asyncio.create_task(self.send(due))
                self.open_requests.add(request)
                request.add_done_callback(self.end_request)
            next_due = self.agenda.next_due
            seconds = LONGEST_WAIT if next_due is None else min(LONGEST_WAIT, max(0.0, next_due - self.now()))
            self.has_changed.clear()
            if not self.agenda.is_over:
                try:
                    await asyncio.wait_for(self.has_changed.wait(), seconds)
                except TimeoutError:
                    continue

    def end_request(self, request: asyncio.Task[None]) -> None:
        self.open_requests.discard(request)
        self.has_changed.set()
        if not request.cancelled():
            # nothing but a fault of our own
            request.result()

    # -- one request ------------------------------------------------------------------------------------------------

    async def send(self, due: Due) -> None:
        ask = self.workload.asks[due.index]
        said = self.said.setdefault(ask.conversation, Said()) if ask.conversation != ALONE else Said()
        path, body = self.message(ask, said)
        stream = CompletionStream()
        refusal = bytearray()
        sent = self.now()

        def take(data: bytes) -> None:
            stream.take(data, self.now())
            # of an error there is no more than a line
            if not stream.times and len(refusal) < 4096:
                refusal.extend(data)

        try:
            async with asyncio.timeout(self.request_seconds):
                head = await self.client.stream("POST", path, body, take)
            self.plan_hash = self.plan_hash or head.headers.get("x-switchgear-plan", "")
            if head.status != 200:
                stream.error = f"status {head.status}: {message_of(bytes(refusal))}"
        except FAILURES as failure:
            stream.error = told(failure)
        served = self.served_of(due, sent, self.now(), stream)
        self.ledger.enter(served)
        problem = served.error
        if not problem and self.agenda.has_next(due.index):
            problem = await self.remember(said, served.text)
        if not problem:
            # the next turn is due when the client knows what to send
            self.agenda.answer(due.index, self.now())
            return
        self.ledger.fail(due.index, self.now())

    def message(self, ask: Ask, said: Said) -> tuple[str, dict[str, Any]]:
        """Path and body of a request: all that was said in its conversation, and its own."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.num_output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if ask.text and ask.conversation != ALONE:
            said.messages.append({"role": "user", "content": ask.text})
            return "/v1/chat/completions", {**body, "messages": said.messages}
        if ask.text:
            return "/v1/completions", {**body, "prompt": ask.text}
        said.token_ids += ask.token_ids(self.ids.first, self.ids.end).tolist()
        return "/v1/completions", {**body, "prompt": said.token_ids}

    def served_of(self, due: Due, sent: float, finished: float, stream: CompletionStream) -> Served:
        error = stream.error
        if not error and not stream.is_whole and not stream.finish_reason:
            error = "the server ended the stream before the output"
        usage = stream.usage
        details = usage.prompt_tokens_details if usage else None
        num_cached = UNKNOWN if details is None or details.cached_tokens is None else details.cached_tokens
        return Served(
            index=due.index,
            due=due.time,
            sent=sent,
            token_times=stream.token_times,
            finished=finished,
            num_prompt=usage.prompt_tokens if usage else self.workload.asks[due.index].num_prompt,
            num_output=stream.num_output,
            num_cached=num_cached,
            text="".join(stream.text),
            finish_reason=stream.finish_reason,
            error=error,
        )

    async def remember(self, said: Said, text: str) -> str:
        """Enter an answer in its conversation. Returns why its tokens cannot be had, or nothing."""
        if said.messages:
            said.messages.append({"role": "assistant", "content": text})
            return ""
        try:
            said.token_ids += await self.tokens_of(text)
        except FAILURES as failure:
            return told(failure)
        return ""

    async def tokens_of(self, text: str) -> list[int]:
        """As the server reads it. Raises one of FAILURES."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        head, answer = await self.client.request("POST", "/tokenize", body)
        if head.status != 200:
            raise BrokenAnswer(f"POST /tokenize: status {head.status}")
        try:
            return [int(token) for token in json.loads(answer)["tokens"]]
        except (ValueError, KeyError, TypeError):
            raise BrokenAnswer("POST /tokenize: the answer has no tokens") from None

    async def check_tokenize(self) -> None:
        """Raise ConfigError for conversations of random tokens where the server cannot tell an answer's tokens."""
        turns = Counter(ask.conversation for ask in self.workload.asks if ask.segments and ask.conversation != ALONE)
        if max(turns.values(), default=0) < 2:
            return
        try:
            await self.tokens_of("text")
        except FAILURES as failure:
            raise ConfigError(
                f"conversations of random tokens need a server with POST /tokenize ({told(failure)}): take a workload "
                "of text"
            ) from None
