"""The Python API: a model, an engine in this process, and text in and out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ..config import Config, build_config
from ..engine.build import build_engine
from ..engine.controls import read_stats, run_control
from ..engine.emission import Vector
from ..errors import RequestError
from ..model.tokenizer import Tokenizer
from ..plan import EffectivePlan
from ..records import IngressRequest, IntArray, Outcome
from ..sampling_params import SamplingParams
from .embedding import EmbeddingRequest, normalized
from .ingress import IngressChain
from .live import LiveRequest
from .prompts import Message, Prompt, Prompts
from .results import Chunk, Result

Encoded = tuple[IntArray, Prompt, tuple[Message, ...]]
"""Token ids, the prompt they came from, and the conversation it was rendered from."""


class LLM:
    """One model in one engine in this process. Two of them share nothing; not for several threads at once.

    model: a catalogue name, a Hugging Face directory or id, or a .gguf file. plugins: {"name": {options}} in the order
    in which they apply; `{}` is everything off, None the recommended recipe. engine: options of the `[engine]` section.
    plugin_classes: plugins that are not installed, for tests and notebooks.

    Raises ConfigError, ModelError or PluginError, one sentence each.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        dtype: str = "auto",
        plugins: Mapping[str, Mapping[str, Any]] | None = None,
        plugin_classes: Iterable[type] = (),
        cache: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        **engine: Any,
    ) -> None:
        sections: dict[str, Any] = {"model": {"name": str(model), "dtype": dtype}, "engine": engine}
        if plugins is not None:
            sections["plugins"] = plugins
        config = build_config(sections=sections)
        self._build(config, tuple(plugin_classes), cache, clock)
        self._engine.start()

    @classmethod
    def from_config(cls, config: Config, *, cache: Path | None = None, load: bool = True) -> Self:
        """As the command line builds it. `load=False` makes the plan and reads no weights."""
        llm = cls.__new__(cls)
        llm._build(config, (), cache, time.monotonic)
        if load:
            llm._engine.start()
        return llm

    def _build(self, config: Config, classes: tuple[type, ...], cache: Path | None, clock: Callable[[], float]) -> None:
        built = build_engine(config, classes, cache, clock)
        self.config = config
        self.plan: EffectivePlan = built.plan
        self.model_path: Path = built.files.source
        self.prompts = Prompts(built.files, built.tokenizer)
        self._engine = built.engine
        self._registry = built.registry
        self._ingress = IngressChain(built.registry, built.stages)
        self._controls = built.controls
        self._live: dict[str, LiveRequest] = {}
        self._embeddings: dict[str, EmbeddingRequest] = {}
        self._counter = itertools.count()
        self._is_closed = False

    # -- generation -------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Result]:
        """Complete every prompt, a text or a list of token ids; results stand in the order of the prompts.

        params: one for all, or one for each. Raises RequestError for a bad prompt before anything runs; a request that
        fails later has finish_reason "error" and says why in `error`.
        """
        return self._complete([self._encode(prompt) for prompt in list_of_prompts(prompts)], params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Result]:
        """Answer one conversation, or several, through the model's own chat template."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_one else messages
        return self._complete([self._encode_chat(conversation) for conversation in conversations], params)

    def stream(self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None) -> Generator[Chunk]:
        """Complete one prompt or answer one conversation, piece by piece; the last chunk carries the result.

        The request starts with the first `next`; closing the iterator aborts it. Several streams may be open at once:
        each moves all of them.
        """
        given: Any = prompt
        is_chat = not isinstance(given, str) and bool(given) and isinstance(given[0], Mapping)
        encoded = self._encode_chat(given) if is_chat else self._encode(given)
        self._check_open()
        self._engine.check(encoded[0], params := params or SamplingParams())
        return self._stream(encoded, params)

    def _stream(self, encoded: Encoded, params: SamplingParams) -> Generator[Chunk]:
        # submitted here, since closing a generator that never started runs none of it
        live = self._submit(*encoded, params)
        try:
            while True:
                while live.chunks:
                    chunk = live.chunks.popleft()
                    is_last = live.is_done and not live.chunks
                    yield replace(chunk, result=live.result()) if is_last else chunk
                if live.is_done:
                    return
                self._pump()
        finally:
            self._leave(live)

    def _complete(
        self, encoded: Sequence[Encoded], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Result]:
        each = list_of_params(params, len(encoded))
        for (prompt, _, _), its_params in zip(encoded, each, strict=True):
            self._engine.check(prompt, its_params)
        lives: list[LiveRequest] = []
        try:
            for request, its_params in zip(encoded, each, strict=True):
                lives.append(self._submit(*request, its_params))
            while not all(live.is_done for live in lives):
                self._pump()
            return [live.result() for live in lives]
        finally:
            for live in lives:
                self._leave(live)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: Literal["mean", "last"] = "mean", normalize: bool = True
    ) -> list[Vector]:
        """One vector `[E]` in float32 for every prompt: the model's last hidden states, pooled over its tokens.

        Raises RequestError for a bad prompt before anything runs, and for one that failed while it ran.
        """
        encoded = [self.prompts.encode(prompt) for prompt in list_of_prompts(prompts)]
        self._check_open()
        params = SamplingParams(max_tokens=1)
        for token_ids in encoded:
            self._engine.check(token_ids, params)
        lives = [EmbeddingRequest(f"request-{next(self._counter)}") for _ in encoded]
        try:
            for live, token_ids in zip(lives, encoded, strict=True):
                self._embeddings[live.request_id] = live
                self._engine.add(live.request_id, token_ids, params, pooling=pooling)
            while not all(live.is_done for live in lives):
                self._pump()
        finally:
            for live in lives:
                del self._embeddings[live.request_id]
                self._engine.abort(live.request_id)
        return [normalized(live.result()) if normalize else live.result() for live in lives]

    # -- one request ------------------------------------------------------------------------------------------------

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made for conversations."""
        return self.prompts.has_chat_template

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompts.tokenizer

    def num_tokens(self, messages: Sequence[Message]) -> int:
        """Prompt tokens of a conversation in the model's chat template."""
        return len(self._encode_chat(messages)[0])

    def _encode(self, prompt: Prompt) -> Encoded:
        return self.prompts.encode(prompt), prompt, ()

    def _encode_chat(self, messages: Any) -> Encoded:
        token_ids, text = self.prompts.encode_chat(messages)
        return token_ids, text, tuple(messages)

    def _submit(
        self, token_ids: IntArray, prompt: Prompt, messages: tuple[Message, ...], params: SamplingParams
    ) -> LiveRequest:
        """Through the ingress chain and into the engine, or out again with an answer."""
        self._check_open()
        self._engine.check(token_ids, params)
        request = IngressRequest(
            id=f"request-{next(self._counter)}",
            prompt=prompt if isinstance(prompt, str) else tuple(token_ids.tolist()),
            messages=messages,
            sampling=asdict(params),
            model=self.config.model.name,
        )
        visit = self._ingress.visit(request)
        self._ingress.enter_blocking(visit, meanwhile=self._pump_once)
        try:
            # as the stages left it
            if visit.request.prompt != request.prompt:
                token_ids = self.prompts.encode(visit.request.prompt, add_special=not messages)
            if visit.request.sampling != request.sampling:
                options: dict[str, Any] = dict(visit.request.sampling)
                params = SamplingParams(**options)
            live = LiveRequest(request.id, tuple(token_ids.tolist()), params, self.tokenizer, self.plan.hash)
            live.visit = visit
            if visit.completion is not None:
                live.answer(visit.completion)
                return live
            tenant, priority = visit.request.tenant, visit.request.priority
            self._engine.add(request.id, token_ids, params, tenant=tenant, priority=priority)
        except Exception as error:
            self._ingress.leave(visit, Outcome("rejected", error=str(error)))
            raise
        self._live[request.id] = live
        return live

    def _leave(self, live: LiveRequest) -> None:
        """The request is over for its caller, finished or not: nothing of it stays behind. Safe to repeat."""
        if self._live.pop(live.request_id, None) is not None and not live.is_done:
            self._engine.abort(live.request_id)
        if live.visit is not None:
            self._ingress.leave(live.visit, live.outcome())

    def _pump(self) -> None:
        """One step of the engine for everybody."""
        self._check_open()
        if self._engine.is_waiting_for_tickets:
            self._engine.wake.wait(timeout=1.0)
            self._engine.wake.clear()
        for emission in self._engine.step():
            if vector := self._embeddings.get(emission.request):
                vector.take(emission)
            live = self._live.get(emission.request)
            if live is None:
                continue
            live.take(emission, abort=partial(self._engine.abort, live.request_id))
            if live.is_done:
                del self._live[live.request_id]
                if live.visit is not None:
                    self._ingress.leave(live.visit, live.outcome())

    def _pump_once(self) -> bool:
        """For whoever waits at the door: move the others on, False if nobody is inside."""
        if not self._engine.has_work:
            return False
        self._pump()
        return True

    # -- the rest ---------------------------------------------------------------------------------------------------

    def control(self, plugin: str, command: str, **arguments: Any) -> Any:
        """Run a plugin's named command."""
        return run_control(self._controls, plugin, command, arguments)

    def stats(self) -> dict[str, dict[str, float]]:
        """Every plugin's counters, by plugin."""
        return read_stats(self._controls)

    def audit(self) -> list[str]:
        """What is lost, held twice or held by the dead in the engine's books; empty when all is well."""
        return self._engine.audit()

    def close(self) -> None:
        """Abort what runs and give the memory back. A closed engine refuses every call; closing twice is fine."""
        if self._is_closed:
            return
        for live in list(self._live.values()):
            self._leave(live)
        self._engine.close()
        self._ingress.close()
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("this engine is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a text and a list of numbers are one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"a prompt is a text or a list of token ids, not {type(prompts).__name__}")
    if all(isinstance(item, Sequence) for item in prompts):
        return list(prompts)  # type: ignore[arg-type]  # checked item by item
    return [prompts]  # type: ignore[list-item]  # a list of token ids, or of nonsense that _encode names


def list_of_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{count} prompts and {len(params)} sampling params: give one for all, or one for each")
    return list(params)
