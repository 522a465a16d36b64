"""An engine in a process of its own, as a gateway uses it: requests in, emissions out, restarted when it dies.

Imports no torch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import zmq

from ..config import Config
from ..errors import SwitchgearError
from ..plan import EffectivePlan
from ..records import IntArray, Limits, Pooling
from ..sampling_params import SamplingParams
from .child import Child, private_folder
from .emission import Emission
from .messages import (
    Abort,
    Add,
    Answer,
    Call,
    CannotStart,
    Command,
    Failure,
    ForEngine,
    ForGateway,
    Gauges,
    ReadAudit,
    ReadStats,
    Ready,
    Refused,
    Step,
    Stop,
)

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "down", "failed", "closed"]


class EngineDown(SwitchgearError):
    """There is no engine that could answer: it is loading, has died or was closed. The text says which."""


class EngineClient:
    """An engine in a child process, restarted when it dies. Used from one asyncio loop, on which it calls back.

    on_emissions: what a step said. on_refused: a request's id and why it can never run. on_down: the engine died of
    this cause, and every request that was inside is lost. max_restarts: how many within `per_seconds`, after which the
    engine stays down; one that cannot start at all is not tried again.
    """

    def __init__(
        self,
        config: Config,
        *,
        cache: Path | None = None,
        on_emissions: Callable[[list[Emission]], None],
        on_refused: Callable[[str, str], None],
        on_down: Callable[[str], None],
        max_restarts: int = 3,
        per_seconds: float = 300.0,
    ) -> None:
        self.config = config
        self.cache = cache
        self.max_restarts = max_restarts
        self.per_seconds = per_seconds
        self.state: State = "loading"
        self.cause = ""
        """Why the engine is down or has failed; while it loads, why it had to be started again."""
        self.plan: EffectivePlan | None = None
        self.limits: Limits | None = None
        self.startup: Mapping[str, float] = {}
        """Seconds: spawn, import beside resolve, assemble, load, and total."""
        self.gauges = Gauges()
        self.num_restarts = 0
        self._on_emissions = on_emissions
        self._on_refused = on_refused
        self._on_down = on_down
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._folder = private_folder()
        self._child: Child | None = None
        self._restarts: deque[float] = deque()
        self._settled = asyncio.Event()
        """The engine is ready, or never will be."""
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()

    # -- life -------------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process, so that it loads while the gateway does other things. Needs no running loop."""
        assert self._child is None, "launch comes first, and once"
        self._child = Child(self._context, self._folder, self.num_restarts, self.config, self.cache)

    @property
    def pid(self) -> int | None:
        """Of the engine's process, the last one that was started."""
        return self._child.process.pid if self._child is not None else None

    async def start(self) -> None:
        """Attach to the running loop, and launch if that was not done; does not wait until the engine is ready."""
        self._loop = asyncio.get_running_loop()
        if self._child is None:
            self.launch()
        self._attach()

    def _attach(self) -> None:
        assert self._child is not None and self._loop is not None
        self._child.attach(self._loop, self._take, self._exited)

    async def wait_ready(self) -> EffectivePlan:
        """The plan, once weights are loaded. Raises EngineDown where the engine cannot start or does not any more."""
        await self._settled.wait()
        if self.state != "ready" or self.plan is None:
            raise EngineDown(self._why_not())
        return self.plan

    async def close(self, grace: float = 5.0) -> None:
        """End the process: ask, close its input after `grace` seconds, kill it a second later. Safe to repeat."""
        if self.state == "closed":
            return
        was_ready, self.state = self.state == "ready", "closed"
        self._drop_calls(self._why_not())
        self._settled.set()
        if self._child is not None:
            if not (was_ready and self._child.send(Stop())):
                self._child.dismiss()
            await asyncio.to_thread(end, self._child, grace)
            self._child.detach()
        self._context.destroy()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _exited(self) -> None:
        """The process has ended, and all it said was heard."""
        assert self._child is not None
        self._child.dismiss()
        self._child.detach()
        if self.state in ("failed", "closed"):
            return
        self.state, self.cause = "down", self._child.cause()
        self._settled.clear()
        self._drop_calls(self.cause)
        try:
            self._on_down(self.cause)
        finally:
            self._start_again()

    def _start_again(self) -> None:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > self.per_seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self.max_restarts:
            limit = f"{self.max_restarts} restarts in {self.per_seconds:g} seconds"
            self._fail(f"{self.cause}; it is not started again, since the limit is {limit}")
            return
        self._restarts.append(now)
        self.num_restarts += 1
        self.state, self._child = "loading", None
        self.gauges = Gauges(num_restarts=self.num_restarts)
        try:
            self.launch()
        except OSError as error:
            self._fail(f"{self.cause}; and it cannot be started again: {error.strerror}")
        else:
            self._attach()
            logger.warning("%s; it is started again (%d of %d)", self.cause, len(self._restarts), self.max_restarts)

    def _fail(self, cause: str) -> None:
        self.state, self.cause = "failed", cause
        self._settled.set()

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(
        self,
        request: str,
        prompt: IntArray,
        params: SamplingParams,
        *,
        tenant: str = "",
        priority: int = 0,
        pooling: Pooling = "",
    ) -> None:
        """Send a request. prompt: `[P]` token ids. Raises EngineDown where there is no engine that is ready."""
        self._send(Add(request, prompt, params, tenant, priority, pooling))

    def abort(self, request: str, child: int | None = None) -> None:
        """End a request, or one of its outputs; one that is unknown, has ended or is lost is ignored."""
        if self.state == "ready" and self._child is not None:
            self._child.send(Abort(request, child))

    async def control(self, plugin: str, command: str, arguments: Mapping[str, Any]) -> Any:
        """Run a plugin's named command; its answer in plain values. Raises ConfigError, PluginFault or EngineDown."""
        return await self._call(Command(next(self._numbers), plugin, command, arguments))

    async def stats(self) -> dict[str, dict[str, float]]:
        """Every plugin's counters in the engine's process, by plugin. Raises PluginFault or EngineDown."""
        stats: dict[str, dict[str, float]] = await self._call(ReadStats(next(self._numbers)))
        return stats

    async def audit(self) -> list[str]:
        """What is wrong with the engine's books, empty when all is well. Raises PluginFault or EngineDown."""
        problems: list[str] = await self._call(ReadAudit(next(self._numbers)))
        return problems

    async def _call(self, call: Call) -> Any:
        future = self._calls[call.call] = asyncio.get_running_loop().create_future()
        try:
            self._send(call)
            return await future
        finally:
            self._calls.pop(call.call, None)

    def _send(self, message: ForEngine) -> None:
        if self.state != "ready" or self._child is None:
            raise EngineDown(self._why_not())
        if not self._child.send(message):
            raise EngineDown("the engine has ended: try again in a few seconds")

    def _why_not(self) -> str:
        match self.state:
            case "closed":
                return "the engine was stopped: start the server again"
            case "failed":
                return self.cause
            case _:
                loading = "the engine is loading: try again in a few seconds"
                return f"{loading} ({self.cause})" if self.cause else loading

    # -- what the engine says ---------------------------------------------------------------------------------------

    def _take(self, message: ForGateway) -> None:
        if self.state == "closed":
            return
        match message:
            case Step(emissions, gauges):
                self._note(gauges)
                if emissions:
                    self._on_emissions(emissions)
            case Refused(request, cause):
                self._on_refused(request, cause)
            case Answer(call, value):
                self._settle(call, lambda future: future.set_result(value))
            case Failure():
                self._settle(message.call, lambda future: future.set_exception(message.error()))
            case Ready():
                self.plan, self.limits, self.startup = message.plan, message.limits, message.startup
                self._note(message.gauges)
                self.state = "ready"
                self._settled.set()
            case CannotStart(cause):
                self._fail(cause)
                assert self._child is not None
                self._child.dismiss()

    def _note(self, gauges: Gauges) -> None:
        self.gauges = msgspec.structs.replace(gauges, num_restarts=gauges.num_restarts + self.num_restarts)

    def _settle(self, call: int, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        future = self._calls.get(call)
        if future is not None and not future.done():
            settle(future)

    def _drop_calls(self, cause: str) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDown(cause))


def end(child: Child, grace: float) -> None:
    """Wait for a process that was asked to end, and do not take no for an answer."""
    if child.wait(grace):
        return
    child.dismiss()
    if not child.wait(1.0):
        child.kill()
        child.wait(5.0)
