"""The engine in a process of its own: `python -m switchgear.core.engine.process`, started by `EngineClient`.

What to build comes through standard input, which stays open: once it is closed the gateway is gone, and so is this
process. All else goes through one ZeroMQ socket. The model's files are found while torch is imported.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from ..errors import RequestError, SwitchgearError
from ..interfaces import Control
from ..registry import Bound
from .build import Built, Found, build, find
from .controls import read_stats, run_control, told
from .messages import (
    Abort,
    Add,
    Answer,
    Call,
    CannotStart,
    Command,
    Failure,
    ForGateway,
    Gauges,
    ReadStats,
    Ready,
    Refused,
    Start,
    Step,
    Stop,
    decode_for_engine,
    decode_start,
    encode,
    plain,
)

if TYPE_CHECKING:
    from .engine import Engine

REPORT_SECONDS = 1.0
"""How old the gateway's numbers may get while there is work."""


def main() -> None:
    # the terminal and service managers send these to every process of the group, and it is the gateway that decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    start = read_start()
    startup = {"spawn": time.monotonic() - start.launched}
    gateway = threading.Thread(target=end_with_gateway, args=(Path(start.address).parent,), daemon=True)
    gateway.start()
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.set_hwm(0)
        pair.linger = 1000
        pair.connect(f"ipc://{start.address}")
        try:
            built = load(start, startup)
        except Exception as error:
            pair.send(encode(CannotStart(sentence(error))))
            gateway.join()
            return
        engine = EngineProcess(built.engine, built.controls, pair)
        startup["total"] = time.monotonic() - start.launched
        pair.send(encode(Ready(built.plan, built.limits, startup, engine.gauges())))
        # what was imported and loaded stays: a full collection that looks at it costs a step a tenth of a second
        gc.freeze()
        engine.run()


def read_start() -> Start:
    size = int.from_bytes(sys.stdin.buffer.read(4))
    return decode_start(sys.stdin.buffer.read(size))


def end_with_gateway(folder: Path) -> None:
    """Wait until standard input is closed, which a gateway that is killed does as well, and leave nothing behind."""
    os.read(sys.stdin.fileno(), 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def load(start: Start, startup: dict[str, float]) -> Built:
    """Build the engine and read its weights; enters the seconds that each phase took."""

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        startup[phase] = time.monotonic() - begun

    def find_files() -> Found:
        with timed("resolve"):
            return find(start.config, cache=Path(start.cache) if start.cache else None)

    # PyTorch in this thread: it would leave the one that imports it a thread for products, which counts as one too many
    # for the processor from then on, and no thread waits for the next product any more but sleeps
    with ThreadPoolExecutor(1) as beside:
        finding = beside.submit(find_files)
        with timed("import"):
            importlib.import_module(".assemble", __package__)
        found = finding.result()
    with timed("assemble"):
        built = build(found, has_ingress=False)
    with timed("load"):
        built.engine.start()
    return built


def sentence(error: Exception) -> str:
    """What the gateway says of a start that failed; the traceback of what is nobody's fault but ours is logged."""
    if isinstance(error, SwitchgearError):
        return str(error)
    logging.getLogger(__name__).error("the engine cannot start", exc_info=error)
    return f"the engine cannot start: {type(error).__name__}: {error}"


class EngineProcess:
    """Steps an engine and talks to its gateway between two steps. One thread calls it.

    pair: a connected PAIR socket without a high water mark.
    """

    def __init__(self, engine: Engine, controls: Sequence[Bound[Control]], pair: zmq.Socket[bytes]) -> None:
        self.engine = engine
        self.controls = controls
        self.pair = pair
        self.wake = engine.wake = Wake()
        self.poller = zmq.Poller()
        self.poller.register(pair, zmq.POLLIN)
        self.poller.register(self.wake.receiver, zmq.POLLIN)
        self.is_stopping = False
        self.last_report = 0.0

    def run(self) -> None:
        """Until `Stop`. What is raised here is no plugin's fault, and ends the process."""
        while not self.is_stopping:
            self.hear()
            if self.engine.has_work and not self.is_stopping:
                self.step()
        self.engine.close()
        self.wake.close()

    def step(self) -> None:
        emissions, now = self.engine.step(), time.monotonic()
        if emissions or not self.engine.has_work or now - self.last_report >= REPORT_SECONDS:
            self.last_report = now
            self.send(Step(emissions, self.gauges()))

    def hear(self) -> None:
        """Obey what has come; where there is nothing to do, wait for it."""
        if not self.engine.has_work:
            self.poller.poll()
        elif self.engine.is_waiting_for_tickets:
            self.poller.poll(int(REPORT_SECONDS * 1000))
        if self.wake.is_set():
            self.wake.clear()
        with suppress(zmq.Again):
            while not self.is_stopping:
                self.obey(self.pair.recv(zmq.NOBLOCK))

    def obey(self, data: bytes) -> None:
        match decode_for_engine(data):
            case Add() as add:
                self.add(add)
            case Abort(request, child):
                self.engine.abort(request, child)
            case Stop():
                self.is_stopping = True
            case call:
                self.answer(call)

    def add(self, add: Add) -> None:
        options: dict[str, Any] = {"tenant": add.tenant, "priority": add.priority, "pooling": add.pooling}
        try:
            self.engine.add(add.request, add.prompt, add.params, **options)
        except RequestError as error:
            self.send(Refused(add.request, str(error)))

    def answer(self, call: Call) -> None:
        try:
            with self.engine.parts.registry.blaming():
                self.send(Answer(call.call, self.ask(call)))
        except SwitchgearError as error:
            self.send(Failure.of(call.call, error))

    def ask(self, call: Call) -> Any:
        if isinstance(call, Command):
            value = run_control(self.controls, call.plugin, call.command, call.arguments)
            return told(call.plugin, call.command, partial(plain, value))
        if isinstance(call, ReadStats):
            return read_stats(self.controls)
        return self.engine.audit()

    def send(self, message: ForGateway) -> None:
        self.pair.send(encode(message))

    def gauges(self) -> Gauges:
        engine, requests = self.engine, self.engine.requests
        num_blocks = engine.parts.kv.num_blocks
        return Gauges(
            num_running=len(requests.running),
            num_waiting=len(requests.waiting),
            num_held=sum(map(len, requests.held.values())),
            kv_used=num_blocks - engine.count_free_blocks(),
            kv_total=num_blocks,
            num_steps=engine.num_steps,
            step_rows=engine.step_rows,
            step_tokens=engine.step_tokens,
            step_seconds=engine.step_seconds,
            num_preempted=engine.driver.num_preempted,
            num_restarts=engine.num_restarts,
        )


class Wake(threading.Event):
    """An event that a poll can wait for beside a socket: `set` from any thread makes `receiver` readable."""

    def __init__(self) -> None:
        super().__init__()
        self.receiver, self.sender = socket.socketpair()
        self.receiver.setblocking(False)
        self.sender.setblocking(False)

    def set(self) -> None:
        # before the flag, so that whoever sees the flag finds the byte; a full buffer wakes as well as one byte
        with suppress(BlockingIOError):
            self.sender.send(b"\0")
        super().set()

    def clear(self) -> None:
        super().clear()
        with suppress(BlockingIOError):
            while self.receiver.recv(4096):
                pass

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


if __name__ == "__main__":
    main()
