"""The engine's process as its gateway sees it: how it is started, heard and ended, and what it died of."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import zmq

from ..config import Config
from ..errors import ConfigError
from .messages import ForEngine, ForGateway, Start, decode_for_gateway, encode

LONGEST_NAME = 16
"""Bytes of a socket's name in its folder, and of the separator before it."""
TAIL_LINES = 50
"""Lines of the log that are kept for the cause of a death."""

SETTINGS: Mapping[str, str] = {
    # turns, together about a fifth of a millisecond, that GNU's OpenMP threads look for their next product before they
    # sleep: those of a step follow each other at once, and waking a thread for each costs more than most of them. The
    # 3 ms that it takes by itself keep those it waits for from running where there are more busy threads than cores
    "GOMP_SPINCOUNT": "20000",
    # torch's library for bfloat16 products keeps compiled code for every number of rows it has seen, 0.7 MB each and
    # by default 1,024 of them
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
}
"""Of libraries in the engine's process, where the user has not set them."""


class Child:
    """One engine process, started as soon as this is made. Nothing here blocks but `wait`.

    folder: private to the gateway; the socket's file is made in it. number: tells apart the children of one gateway.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], folder: Path, number: int, config: Config, cache: Path | None
    ) -> None:
        launched = time.monotonic()
        address = folder / f"engine-{number}"
        self.pair = context.socket(zmq.PAIR)
        # no mark that a send could block at: open requests are bounded by the gateway
        self.pair.set_hwm(0)
        self.pair.linger = 0
        self.pair.bind(f"ipc://{address}")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", f"{__package__}.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**SETTINGS, **os.environ},
        )
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log = threading.Thread(target=self._read_log, daemon=True)
        self._log.start()
        self._watch: threading.Thread | None = None
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tell(Start(config, str(address), launched, str(cache) if cache else None))

    def _tell(self, start: Start) -> None:
        assert self.process.stdin is not None
        data = encode(start)
        # a process that died at once is noticed when it is watched
        with suppress(BrokenPipeError):
            self.process.stdin.write(len(data).to_bytes(4) + data)
            self.process.stdin.flush()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as log:
            for line in log:
                text = line.decode(errors="replace").rstrip()
                self.tail.append(text)
                # whoever closed our own log shall not stop the engine's
                with suppress(OSError):
                    sys.stderr.write(f"engine: {text}\n")

    # -- on the loop ------------------------------------------------------------------------------------------------

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[ForGateway], None],
        on_exit: Callable[[], None],
    ) -> None:
        """Call back on `loop`, once for each message, and after the last one once for the end of the process."""
        self._loop, self._on_message, self._on_exit = loop, on_message, on_exit
        loop.add_reader(self.pair.fileno(), self._hear)
        loop.call_soon(self._hear)
        self._watch = threading.Thread(target=self._wait_for_end, args=(loop,), daemon=True)
        self._watch.start()

    def _wait_for_end(self, loop: asyncio.AbstractEventLoop) -> None:
        self.process.wait()
        # what it wrote last; a process that it started may hold the log open for longer
        self._log.join(timeout=0.5)
        self._has_ended = True
        loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        """Take one message, and look again until none is left: the descriptor tells once of all that has come."""
        if self._loop is None:
            return
        # read before the socket is, or what it said last might come after it
        has_ended = self._has_ended
        try:
            data = self.pair.recv(zmq.NOBLOCK)
        except zmq.Again:
            if has_ended:
                self._on_exit()
            return
        self._loop.call_soon(self._hear)
        self._on_message(decode_for_gateway(data))

    def send(self, message: ForEngine) -> bool:
        """False if there is nobody to hear it any more."""
        try:
            self.pair.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        if self._loop is not None:
            # a send may take up what the descriptor would have told
            self._loop.call_soon(self._hear)
        return True

    def detach(self) -> None:
        """No more callbacks, and no socket. Safe to repeat."""
        if self._loop is not None:
            self._loop.remove_reader(self.pair.fileno())
            self._loop = None
        self.pair.close()

    # -- the end ----------------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """Close its standard input: it ends at once, whatever it is doing."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()

    def wait(self, seconds: float) -> bool:
        """Block until the process has ended; False if it has not in that time."""
        if self._watch is not None:
            self._watch.join(seconds)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        return self.process.returncode is not None

    def cause(self) -> str:
        """What the process died of, in words: its exit status, and the last error in its log."""
        code = self.process.returncode
        if code == -signal.SIGKILL:
            # it had no time to say anything, so the last error in the log is another one
            return "the engine was killed (signal 9), as the system does when memory runs out"
        words = last_error(self.tail)
        how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
        return f"the engine {how}: {words}" if words else f"the engine {how}"


def private_folder() -> Path:
    """A new one for the sockets of one gateway. Raises ConfigError where none can be had, or none with a short path."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="switchgear-"))
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"no temporary directory can be made ({reason}): set TMPDIR to a place for it") from error
    if len(os.fsencode(folder)) + LONGEST_NAME > zmq.IPC_PATH_MAX_LEN:
        folder.rmdir()
        raise ConfigError(f"the path {folder} is too long for a socket in it: set TMPDIR to a shorter one")
    return folder


def last_error(lines: Iterable[str]) -> str:
    """The last line that speaks of one, which is what a traceback ends with."""
    return next((line.strip() for line in reversed(list(lines)) if "error" in line.casefold()), "")
