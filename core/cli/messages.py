"""What a person reads on standard error: one sentence for each thing that went wrong, each of them once."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType
from typing import Self

from ..errors import SwitchgearError


class Messages(logging.Handler):
    """Collects what the engine logs while it is entered, so that a failure which also ends a request is told once.

    With `debug` every failure comes with its traceback.
    """

    def __init__(self, debug: bool) -> None:
        super().__init__(logging.WARNING)
        self.debug = debug
        self.logger = logging.getLogger("switchgear")
        self.logged: list[str] = []
        self.is_live = False

    def tell_at_once(self) -> None:
        """From now on, for a command that does not end by itself, tell what is logged when it is logged."""
        self.tell_logged()
        self.is_live = True

    def emit(self, record: logging.LogRecord) -> None:
        text = one_line(record.getMessage())
        if self.is_live:
            self.tell(f"warning: {text}")
        else:
            self.logged.append(text)
        if self.debug and record.exc_info and record.exc_info[1]:
            traceback.print_exception(record.exc_info[1])

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def tell_failure(self, error: BaseException) -> None:
        """The sentence of an error, and before it what was logged and is not the same."""
        if self.debug:
            traceback.print_exception(error)
        self.tell_logged(besides=str(error))
        if isinstance(error, SwitchgearError):
            self.tell(f"error: {one_line(error)}")
        else:
            hint = "" if self.debug else "; run again with --debug for the traceback"
            self.tell(f"internal error: {one_line(f'{type(error).__name__}: {error}')}{hint}")

    def tell_logged(self, besides: str = "") -> None:
        """What was logged since the last time, without what is told in another way."""
        for text in dict.fromkeys(self.logged):
            if text != one_line(besides):
                self.tell(f"warning: {text}")
        self.logged.clear()

    def __enter__(self) -> Self:
        self.logger.addHandler(self)
        self.is_propagating, self.logger.propagate = self.logger.propagate, False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tell_logged()
        self.logger.removeHandler(self)
        self.logger.propagate = self.is_propagating


def one_line(text: object) -> str:
    return " ".join(str(text).split())
