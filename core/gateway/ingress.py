"""The ingress chain: stages that a request enters in config order and leaves in reverse, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import PluginFault, RequestError
from ..interfaces import IngressStage
from ..records import Completion, Continue, IngressAnswer, IngressRequest, Outcome, Reject, Respond, Rewrite, Wait
from ..registry import Bound, Registry

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Visit:
    """One request on its way through the chain."""

    request: IngressRequest
    """As the stages so far rewrote it."""
    completion: Completion | None = None
    """Set once a stage answered."""
    entered: list[tuple[Bound[IngressStage], IngressRequest]] = field(default_factory=list)
    """Whose `leave` is owed, with the request that each saw."""


class IngressChain:
    """Runs the stages of one gateway. `on_error` of a plugin says whether a stage that raises is passed or rejects."""

    def __init__(self, registry: Registry, stages: Sequence[Bound[IngressStage]]) -> None:
        self.stages = tuple(stages)
        self.passes_errors = {
            plugin.name for plugin in registry.plugins if getattr(plugin.instance, "on_error", "reject") == "pass"
        }
        self.num_left = 0
        self._loop: StageLoop | None = None

    def visit(self, request: IngressRequest) -> Visit:
        return Visit(request)

    def enter(self, visit: Visit, meanwhile: Callable[[], bool]) -> None:
        """Through every stage, or to the first that answers. Raises RequestError where one rejects.

        meanwhile: moves other requests on while a stage waits for one of them; False when there are none.
        """
        for stage in self.stages:
            try:
                answer = self._enter(stage, visit, meanwhile)
            except RequestError as error:
                self.leave(visit, Outcome("rejected", error=str(error)))
                raise
            match answer:
                case Rewrite(request):
                    visit.request = request
                case Respond(completion):
                    visit.completion = completion
                    return
                case Reject(_, message):
                    self.leave(visit, Outcome("rejected", error=message))
                    raise RequestError(message)

    def _enter(self, stage: Bound[IngressStage], visit: Visit, meanwhile: Callable[[], bool]) -> IngressAnswer:
        """One stage's answer, which is never `Wait`: that is waited for here."""
        if self._loop is None:
            self._loop = StageLoop()
        while True:
            try:
                answer = self._loop.run(stage.value.enter(visit.request))
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
            self._wait(answer, meanwhile)

    def _wait(self, wait: Wait, meanwhile: Callable[[], bool]) -> None:
        """Until a request inside has ended, which may be the leader, or the time is up; the stage looks again."""
        deadline, num_left = time.monotonic() + wait.timeout, self.num_left
        while self.num_left == num_left and (rest := deadline - time.monotonic()) > 0:
            if not meanwhile():
                time.sleep(min(rest, 0.01))

    def leave(self, visit: Visit, outcome: Outcome) -> None:
        """Tell every stage that was entered how it ended; the second time there is nobody left to tell."""
        owed, visit.entered = visit.entered[::-1], []
        self.num_left += bool(owed)
        for stage, request in owed:
            try:
                stage.value.leave(request, outcome)
            except Exception as error:
                logger.error("%s", PluginFault(stage.plugin, "leave", error), exc_info=error)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


def check_completion(completion: Completion, request: IngressRequest) -> None:
    """Raise ValueError unless there is one of everything for each output that was asked for."""
    num_outputs = request.sampling.get("n", 1)
    given = {len(completion.texts), len(completion.token_ids), len(completion.finish_reasons)}
    if given != {num_outputs}:
        raise ValueError(f"responded with {' and '.join(map(str, sorted(given)))} outputs where n = {num_outputs}")


class StageLoop:
    """An event loop in a thread of its own, so that stages run also where the caller has a loop already."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="switchgear-ingress", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, IngressAnswer]) -> IngressAnswer:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
