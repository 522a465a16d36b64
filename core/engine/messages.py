"""What a gateway and its engine say to each other across two processes: MessagePack, arrays as (dtype, shape, bytes).

Plugins' options, arguments and answers travel as plain values. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

from ..config import Config
from ..errors import ConfigError, ModelError, PluginError, PluginFault, RequestError, SwitchgearError
from ..plan import EffectivePlan
from ..records import IntArray, Limits, Pooling
from ..sampling_params import SamplingParams
from .emission import Emission

T = TypeVar("T")


class Start(msgspec.Struct, frozen=True):
    """The first words, through standard input: what to build, and where to report."""

    config: Config
    address: str
    """Of the socket that all other messages go through."""
    launched: float
    """Monotonic seconds."""
    cache: str | None = None


# -- to the engine --------------------------------------------------------------------------------------------------


class Add(msgspec.Struct, frozen=True, tag=True):
    """A request; refused ones are answered with `Refused`, all others with emissions."""

    request: str
    prompt: IntArray
    params: SamplingParams
    tenant: str = ""
    priority: int = 0
    pooling: Pooling = ""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request, or one of its outputs."""

    request: str
    child: int | None = None


class Command(msgspec.Struct, frozen=True, tag=True):
    """Run a plugin's named command; answered with `Answer` or `Failure`, as the next two."""

    call: int
    plugin: str
    command: str
    arguments: Mapping[str, Any]


class ReadStats(msgspec.Struct, frozen=True, tag=True):
    """Tell every plugin's counters."""

    call: int


class ReadAudit(msgspec.Struct, frozen=True, tag=True):
    """Tell what is wrong with the books."""

    call: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish the step in progress and end."""


Call = Command | ReadStats | ReadAudit
ForEngine = Add | Abort | Command | ReadStats | ReadAudit | Stop


# -- to the gateway -------------------------------------------------------------------------------------------------


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The engine in numbers after a step. Sums and counts start again with the process, but for `num_restarts`."""

    num_running: int = 0
    num_waiting: int = 0
    num_held: int = 0
    """Sequences that wait for a ticket."""
    kv_used: int = 0
    """Blocks."""
    kv_total: int = 0
    num_steps: int = 0
    step_rows: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    """Sums over all steps."""
    num_preempted: int = 0
    num_restarts: int = 0
    """Of the books inside the process and of the process."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The weights are loaded. `startup`: seconds by phase."""

    plan: EffectivePlan
    limits: Limits
    startup: Mapping[str, float]
    gauges: Gauges


class CannotStart(msgspec.Struct, frozen=True, tag=True):
    """One sentence that says why; the process waits to be dismissed."""

    cause: str


class Step(msgspec.Struct, frozen=True, tag=True):
    """What a step has to say, all of it in one message."""

    emissions: list[Emission]
    gauges: Gauges


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot serve this request; one sentence."""

    request: str
    cause: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """To a call, in plain values."""

    call: int
    value: Any


class Failure(msgspec.Struct, frozen=True, tag=True):
    """To a call that raised: the class of the error and its text, for a PluginFault what it was made of."""

    call: int
    kind: str
    text: str
    plugin: str = ""
    method: str = ""

    @classmethod
    def of(cls, call: int, error: SwitchgearError) -> Failure:
        if isinstance(error, PluginFault):
            return cls(call, PluginFault.__name__, error.problem, error.plugin, error.method)
        return cls(call, type(error).__name__, str(error))

    def error(self) -> SwitchgearError:
        """The error that was raised, or one of its base class."""
        if self.kind == PluginFault.__name__:
            return PluginFault(self.plugin, self.method, self.text)
        return ERRORS.get(self.kind, SwitchgearError)(self.text)


ForGateway = Ready | CannotStart | Step | Refused | Answer | Failure

ERRORS = {error.__name__: error for error in (ConfigError, ModelError, PluginError, RequestError)}


# -- bytes ----------------------------------------------------------------------------------------------------------


def encode(message: Start | ForEngine | ForGateway) -> bytes:
    """Raises TypeError for a plugin's value that is not plain."""
    return _encoder.encode(message)


def decode_start(data: bytes) -> Start:
    return msgspec.msgpack.decode(data, type=Start)


def decode_for_engine(data: bytes) -> ForEngine:
    return _for_engine.decode(data)


def decode_for_gateway(data: bytes) -> ForGateway:
    return _for_gateway.decode(data)


def plain(value: Any) -> Any:
    """A plugin's value without arrays and records, as JSON would have it. Raises TypeError."""
    return msgspec.to_builtins(value, enc_hook=_plain_of)


def _plain_of(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to another process")


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return _plain_of(value)


def _unpacked(kind: Any, value: Any) -> Any:
    assert get_origin(kind) is np.ndarray, "everything else has a form of its own"
    dtype, shape, data = value
    return np.frombuffer(data, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_packed)
_for_engine = msgspec.msgpack.Decoder(ForEngine, dec_hook=_unpacked)
_for_gateway = msgspec.msgpack.Decoder(ForGateway, dec_hook=_unpacked)
