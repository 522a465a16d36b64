"""The life of a server: the port at once, requests when the model is there, and a good end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shlex
import signal
import socket
import time
from collections.abc import Iterator

import msgspec
import uvicorn

from ..config import ServerConfig
from ..engine.client import EngineDown
from .app import make_app
from .gateway import Gateway
from .keys import Keys
from .listening import BACKLOG, url_of
from .loop_watch import watch_loop
from .service import Service

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients do, so that none uses one that is just being closed."""
LAST_WORDS = 2
"""Seconds in which answers are sent, once nothing runs any more."""
POLL = 0.1
INTERRUPTED = 128
"""Plus the signal's number: the exit code where a second signal cut the draining short."""


class Server:
    """One server on a socket that listens already.

    service: launched, so that its engine loads. begin: reading of `time.perf_counter` when somebody began to wait.
    """

    def __init__(
        self, config: ServerConfig, service: Service, listener: socket.socket, keys: Keys, begin: float
    ) -> None:
        self.config = config
        self.service = service
        self.listener = listener
        self.gateway = Gateway(service, config, keys)
        self.begin = begin
        self._signals: list[signal.Signals] = []
        self._stop = asyncio.Event()
        self._http = Http(
            uvicorn.Config(
                make_app(self.gateway),
                lifespan="off",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=LAST_WORDS,
            )
        )

    async def run(self) -> int:
        """Serve until a signal, and return the exit code. Raises EngineDown where no engine can be had any more."""
        this = asyncio.current_task()
        assert this is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number, this)
        http = asyncio.ensure_future(self._http.serve(sockets=[self.listener]))
        watch = asyncio.ensure_future(watch_loop(self.gateway.metrics, self.service.client))
        try:
            await self._serve_until_stopped()
            await self._drain()
            return 0
        except asyncio.CancelledError:
            self._http.force_exit = True
            # what is cut off now is cut off on purpose
            logging.getLogger("uvicorn.error").disabled = True
            await self.service.client.close(grace=0)
            return INTERRUPTED + self._signals[-1]
        finally:
            watch.cancel()
            # whoever is still inside is told why, before the port is closed
            await self.service.close()
            self._http.should_exit = True
            await http

    def _on_signal(self, number: signal.Signals, run: asyncio.Task[int]) -> None:
        """The first signal lets running requests finish, the second one does not."""
        self._signals.append(number)
        self._stop.set()
        if len(self._signals) == 2:
            run.cancel()

    async def _serve_until_stopped(self) -> None:
        serving = asyncio.ensure_future(self._serve())
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            stopping.cancel()

    async def _serve(self) -> None:
        client = self.service.client
        await self.service.start()
        self.gateway.open()
        # what was made so far stays, and a full collection that looked at it would hold up every stream for 20 ms
        gc.freeze()
        print(self._greeting(), flush=True)
        while client.state != "failed":
            await asyncio.sleep(POLL)
        raise EngineDown(client.cause)

    async def _drain(self) -> None:
        """Let nobody in, and wait for those who are."""
        self.gateway.doors.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.gateway.doors.empty(), self.config.drain_seconds)

    def _greeting(self) -> str:
        url, seconds = url_of(self.listener), time.perf_counter() - self.begin
        model = self.gateway.wire.model_names[0]
        path: str = "completions"
        asked: dict[str, object] = {"prompt": "Once upon a time"}
        if self.gateway.wire.has_chat_template:
            path, asked = "chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}]}
        body = {"model": model, "max_tokens": 48, **asked}
        key = " -H 'authorization: Bearer KEY'" if self.gateway.keys.are_needed else ""
        return (
            f"switchgear serves {model} at {url} after {seconds:.1f} s (plan {self.gateway.plan_hash})\n"
            f"try: curl {url}/v1/{path}{key} -d {shlex.quote(msgspec.json.encode(body).decode())}"
        )


class Http(uvicorn.Server):
    """Leaves signals to the server around it, which knows what has to end before the port is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
