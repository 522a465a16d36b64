"""A model served to many callers at once: prompts in, streams of text out, an engine in a process of its own.

The asynchronous twin of `llm.LLM`, for one event loop. Imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..defaults import make_registry
from ..engine.client import EngineClient, EngineDown
from ..engine.emission import Emission
from ..errors import RequestError, SwitchgearError
from ..model.architectures import model_spec
from ..model.store import resolve
from ..model.tokenizer import Tokenizer
from ..plan import EffectivePlan
from ..records import IngressRequest, IntArray, Outcome, Pooling
from ..sampling_params import SamplingParams
from .ask import Ask
from .controls import Controls
from .ingress import IngressChain
from .live import LiveRequest
from .prompts import Prompts
from .results import Chunk, Result

LONG_PROMPT = 10_000
"""Characters or token ids from which on a prompt is read in a thread: up to here it takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks, and how urgently."""

    request_id: str
    tenant: str = ""
    priority: int = 0
    """Lower runs first."""
    deadline: float | None = None
    """Reading of the event loop's clock after which the answer is worth nothing."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """One prompt as a vector."""

    vector: np.ndarray[Any, np.dtype[np.float32]]
    """`[E]`, as the model has it: not normalised."""
    num_tokens: int


class DeadlineExceeded(SwitchgearError):
    """The request was not done in the time that its sender gave it."""


class EngineFailure(SwitchgearError):
    """The request failed inside the engine, which goes on: a plugin raised, or no KV could be had."""


class Service:
    """One engine for many callers. Everything but `launch` runs on one event loop.

    A request is refused with RequestError (it can never be served), `Rejected` (a stage of the ingress chain said no),
    EngineDown (with the cause) or DeadlineExceeded; a plugin that fails is a PluginFault in its name.
    """

    def __init__(self, config: Config, *, cache: Path | None = None, max_restarts: int = 3) -> None:
        self.config = config
        self.cache = cache
        self.client = EngineClient(
            config,
            cache=cache,
            on_emissions=self._on_emissions,
            on_refused=self._on_refused,
            on_down=self._on_down,
            max_restarts=max_restarts,
        )
        self._streams: dict[str, Stream] = {}
        self._embeddings: dict[str, Embedding] = {}

    def launch(self) -> None:
        """Start the engine's process; it loads while this one goes on."""
        self.client.launch()

    async def start(self) -> EffectivePlan:
        """Wait until requests can be served. Raises EngineDown, with the cause, where the engine cannot start."""
        await self.client.start()
        plan = await self.client.wait_ready()
        # after the engine, which fetches and converts the model where that is still to be done
        await asyncio.to_thread(self._read_model, plan)
        return plan

    def _read_model(self, plan: EffectivePlan) -> None:
        self.plan_hash = plan.hash
        files = resolve(self.config.model.name, plan.dtype, cache=self.cache, progress=False)
        self.prompts = Prompts(files, Tokenizer(files))
        spec = model_spec(self.config.model.name, files.config, self.prompts.tokenizer.eos_ids)
        self.hidden_size = spec.hidden_size
        registry = make_registry(self.config)
        self.ingress = IngressChain(registry, registry.every("on_ingress", model=spec))
        self.controls = Controls(registry, self.client)

    @property
    def plan(self) -> EffectivePlan:
        assert self.client.plan is not None, "the service was started"
        return self.client.plan

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams) + len(self._embeddings)

    async def close(self) -> None:
        """End what runs, the engine's process included; whoever waits is told. Closing twice is fine."""
        self._on_down("the server is shutting down: ask again in a while")
        await self.client.close()

    # -- text -------------------------------------------------------------------------------------------------------

    async def submit(self, ask: Ask, visitor: Visitor) -> Stream:
        """Start a request: through the ingress chain, and into the engine unless a stage answered it."""
        token_ids, text = await self._read(ask)
        params = self._fitted(ask, len(token_ids))
        request = IngressRequest(
            id=visitor.request_id,
            prompt=text if text is not None else tuple(token_ids.tolist()),
            messages=ask.messages,
            sampling=asdict(params),
            tenant=visitor.tenant,
            model=self.config.model.name,
            priority=visitor.priority,
        )
        visit = self.ingress.visit(request)
        try:
            async with asyncio.timeout_at(visitor.deadline):
                await self.ingress.enter(visit)
        except TimeoutError:
            raise deadline_exceeded() from None
        try:
            if visit.request.prompt != request.prompt:
                token_ids = self.prompts.encode(visit.request.prompt, add_special=not ask.messages)
            if visit.request.sampling != request.sampling:
                options: dict[str, Any] = dict(visit.request.sampling)
                params = SamplingParams(**options)
            live = LiveRequest(
                visitor.request_id, tuple(token_ids.tolist()), params, self.prompts.tokenizer, self.plan_hash
            )
            live.visit = visit
            stream = Stream(self, live)
            if visit.completion is not None:
                live.answer(visit.completion)
                return stream
            self.client.add(
                visitor.request_id, token_ids, params, tenant=visit.request.tenant, priority=visit.request.priority
            )
        except Exception as error:
            self.ingress.leave(visit, Outcome("rejected", error=str(error)))
            raise
        self._streams[visitor.request_id] = stream
        stream.expire_at(visitor.deadline)
        return stream

    async def _read(self, ask: Ask) -> tuple[IntArray, str | None]:
        """Token ids, and the text they are of unless ids were given."""
        if ask.messages:
            read = partial(self.prompts.encode_chat, ask.messages, **ask.template)
            return await asyncio.to_thread(read) if ask.size > LONG_PROMPT else read()
        encode = partial(self.prompts.encode, ask.prompt, ask.add_special)
        token_ids = await asyncio.to_thread(encode) if len(ask.prompt) > LONG_PROMPT else encode()
        return token_ids, ask.prompt if isinstance(ask.prompt, str) else None

    def _fitted(self, ask: Ask, num_prompt: int) -> SamplingParams:
        """The sampling options; without a limit of its own, an output may fill what the model and the pool hold."""
        if not ask.default_max_tokens:
            return ask.params
        room = min(self.plan.max_model_len, self.plan.kv_num_blocks * self.plan.kv_block_size + 1) - num_prompt
        return replace(ask.params, max_tokens=max(1, room, ask.params.min_tokens))

    # -- vectors ----------------------------------------------------------------------------------------------------

    async def embed(self, ask: Ask, visitor: Visitor, pooling: Pooling) -> Embedded:
        """The model's hidden states after the last layer, pooled over the prompt ("mean") or of its "last" token."""
        token_ids, _ = await self._read(ask)
        waiting = Embedding()
        self._embeddings[visitor.request_id] = waiting
        params = SamplingParams(max_tokens=1)
        try:
            self.client.add(
                visitor.request_id,
                token_ids,
                params,
                tenant=visitor.tenant,
                priority=visitor.priority,
                pooling=pooling,
            )
            async with asyncio.timeout_at(visitor.deadline):
                vector = await waiting.vector
        except TimeoutError:
            raise deadline_exceeded() from None
        finally:
            del self._embeddings[visitor.request_id]
            if not waiting.is_over:
                self.client.abort(visitor.request_id)
        return Embedded(vector, len(token_ids))

    # -- what the engine says ---------------------------------------------------------------------------------------

    def _on_emissions(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            if stream := self._streams.get(emission.request):
                stream.take(emission)
            elif waiting := self._embeddings.get(emission.request):
                waiting.take(emission)

    def _on_refused(self, request: str, reason: str) -> None:
        self._fail(request, RequestError(reason))

    def _on_down(self, cause: str) -> None:
        for request in [*self._streams, *self._embeddings]:
            self._fail(request, EngineDown(cause))

    def _fail(self, request: str, error: Exception) -> None:
        if stream := self._streams.get(request):
            stream.fail(error)
        elif waiting := self._embeddings.get(request):
            waiting.fail(error)

    def _ended(self, stream: Stream) -> None:
        """The request is over: nothing of it stays behind. Safe to repeat."""
        self._streams.pop(stream.live.request_id, None)
        if stream.live.visit is not None:
            self.ingress.leave(stream.live.visit, stream.outcome())


class Stream(AsyncIterator[list[Chunk]]):
    """One request on its way: what is new since the last look, until its end. Close it, or the engine goes on."""

    def __init__(self, service: Service, live: LiveRequest) -> None:
        self.live = live
        self.error: Exception | None = None
        self._service = service
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def __anext__(self) -> list[Chunk]:
        while not self.live.chunks:
            if self.error is not None:
                raise self.error
            if self.live.is_done:
                raise StopAsyncIteration
            await self._news.wait()
            self._news.clear()
        chunks = list(self.live.chunks)
        self.live.chunks.clear()
        return chunks

    @property
    def result(self) -> Result:
        """The whole answer, once the stream has ended."""
        return self.live.result()

    async def whole(self) -> Result:
        """Wait for the whole answer. Raises what ended the request early."""
        async for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Nobody listens any more: an output that still runs is ended in the engine. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.live.is_done and self.error is None:
            self._service.client.abort(self.live.request_id)
        self._service._ended(self)

    # -- for the service --------------------------------------------------------------------------------------------

    def take(self, emission: Emission) -> None:
        if emission.error:
            # the other outputs are worth nothing without this one
            self._service.client.abort(self.live.request_id)
            self.fail(EngineFailure(emission.error))
            return
        self.live.take(emission, abort=partial(self._service.client.abort, self.live.request_id))
        if self.live.is_done:
            self._service._ended(self)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """The request ends without an answer."""
        self.error = error
        self._service._ended(self)
        self._news.set()

    def expire_at(self, deadline: float | None) -> None:
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        if not self.live.is_done and self.error is None:
            self._service.client.abort(self.live.request_id)
            self.fail(deadline_exceeded())

    def outcome(self) -> Outcome:
        return Outcome("error", error=str(self.error)) if self.error is not None else self.live.outcome()


class Embedding:
    """A vector that is being computed."""

    def __init__(self) -> None:
        self.vector: asyncio.Future[np.ndarray[Any, np.dtype[np.float32]]] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.vector.done() and not self.vector.cancelled()

    def take(self, emission: Emission) -> None:
        if self.vector.done():
            return
        if emission.pooled is not None:
            self.vector.set_result(emission.pooled)
        elif emission.finish_reason is not None:
            self.vector.set_exception(EngineFailure(emission.error or "the request was aborted"))

    def fail(self, error: Exception) -> None:
        if not self.vector.done():
            self.vector.set_exception(error)


def deadline_exceeded() -> DeadlineExceeded:
    return DeadlineExceeded("the request was not done before its deadline: give it more time or send less at once")
