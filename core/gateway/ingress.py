"""The ingress chain: stages that a request enters in config order and leaves in reverse, each exactly once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import PluginFault, RequestError
from ..interfaces import IngressStage
from ..records import Completion, Continue, IngressAnswer, IngressRequest, Outcome, Reject, Respond, Rewrite, Wait
from ..registry import Bound, Registry

logger = logging.getLogger(__name__)


class Rejected(RequestError):
    """A stage refused the request, with the HTTP status that it named."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.message)
        self.status = reject.status
        self.retry_after = reject.retry_after


@dataclass(slots=True)
class Visit:
    """One request on its way through the chain."""

    request: IngressRequest
    """As the stages so far rewrote it."""
    completion: Completion | None = None
    """Set once a stage answered."""
    entered: list[tuple[Bound[IngressStage], IngressRequest]] = field(default_factory=list)
    """Whose `leave` is owed, with the request that each saw."""
    is_waiting: bool = False
    """A stage waits for another request to end."""


class IngressChain:
    """Runs the stages of one gateway. `on_error` of a plugin says whether a stage that raises is passed or rejects."""

    def __init__(self, registry: Registry, stages: Sequence[Bound[IngressStage]]) -> None:
        self.stages = tuple(stages)
        self.passes_errors = {
            plugin.name for plugin in registry.plugins if getattr(plugin.instance, "on_error", "reject") == "pass"
        }
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop: StageLoop | None = None

    def visit(self, request: IngressRequest) -> Visit:
        return Visit(request)

    async def enter(self, visit: Visit) -> None:
        """Through every stage, or to the first that answers. Raises RequestError where one rejects or fails."""
        try:
            for stage in self.stages:
                match await self._ask(stage, visit):
                    case Rewrite(request):
                        visit.request = request
                    case Respond(completion):
                        visit.completion = completion
                        return
                    case Reject() as reject:
                        raise Rejected(reject)
        except BaseException as error:
            # whoever cancels has left before the engine knew of the request
            kind: Literal["rejected", "aborted"] = "rejected" if isinstance(error, Exception) else "aborted"
            self.leave(visit, Outcome(kind, error=str(error)))
            raise

    async def _ask(self, stage: Bound[IngressStage], visit: Visit) -> IngressAnswer:
        """One stage's answer, which is never `Wait`: that is waited for here, and the stage looks again."""
        while True:
            try:
                answer = await stage.value.enter(visit.request)
                if not isinstance(answer, Continue | Rewrite | Respond | Reject | Wait):
                    raise TypeError(f"returned {type(answer).__name__}, an ingress answer is needed")
                if isinstance(answer, Respond):
                    check_completion(answer.completion, visit.request)
            except Exception as error:
                fault = PluginFault(stage.plugin, "enter", error)
                logger.error("%s", fault, exc_info=error)
                if stage.plugin in self.passes_errors:
                    return Continue()
                raise RequestError(str(fault)) from error
            if not isinstance(answer, Wait):
                visit.entered.append((stage, visit.request))
                return answer
            await self._wait(visit, answer.timeout)

    async def _wait(self, visit: Visit, timeout: float) -> None:
        """Until a request inside has ended, which may be the leader, or the time is up."""
        someone_left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(someone_left)
        visit.is_waiting = True
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(someone_left, timeout)
        finally:
            visit.is_waiting = False
            self._waiters.discard(someone_left)

    def leave(self, visit: Visit, outcome: Outcome) -> None:
        """Tell every stage that was entered how it ended; the second time there is nobody left to tell."""
        owed, visit.entered = visit.entered[::-1], []
        for stage, request in owed:
            try:
                stage.value.leave(request, outcome)
            except Exception as error:
                logger.error("%s", PluginFault(stage.plugin, "leave", error), exc_info=error)
        if owed:
            for waiter in list(self._waiters):
                waiter.get_loop().call_soon_threadsafe(wake, waiter)

    # -- for a caller without an event loop -------------------------------------------------------------------------

    def enter_blocking(self, visit: Visit, meanwhile: Callable[[], bool]) -> None:
        """As `enter`. meanwhile: moves other requests on while a stage waits for one; False when there are none."""
        if not self.stages:
            return
        if self._loop is None:
            self._loop = StageLoop()
        entering = asyncio.run_coroutine_threadsafe(self.enter(visit), self._loop.loop)
        while not entering.done():
            if not (visit.is_waiting and meanwhile()):
                concurrent.futures.wait([entering], timeout=0.005)
        entering.result()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


def wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def check_completion(completion: Completion, request: IngressRequest) -> None:
    """Raise ValueError unless there is one of everything for each output that was asked for."""
    num_outputs = request.sampling.get("n", 1)
    given = {len(completion.texts), len(completion.token_ids), len(completion.finish_reasons)}
    if given != {num_outputs}:
        raise ValueError(f"responded with {' and '.join(map(str, sorted(given)))} outputs where n = {num_outputs}")


class StageLoop:
    """An event loop in a thread of its own, so that stages run also where the caller has a loop already."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="switchgear-ingress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
