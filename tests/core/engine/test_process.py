"""The loop of the engine's process: what it obeys, what it tells and when, and what wakes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import zmq
from switchgear.core.engine.engine import Engine
from switchgear.core.engine.messages import (
    Abort,
    Add,
    Answer,
    Command,
    Failure,
    ForEngine,
    ForGateway,
    ReadAudit,
    ReadStats,
    Refused,
    Step,
    Stop,
    decode_for_gateway,
    encode,
)
from switchgear.core.engine.process import EngineProcess, Wake
from switchgear.core.errors import PluginFault
from switchgear.core.hooks import hookimpl
from switchgear.core.sampling_params import SamplingParams

from ..made_plugins import Base
from .build import add, virtual_engine

Message = TypeVar("Message")


class Talker(Base):
    """Commands that do well, badly, and something to the engine."""

    name = "talker"

    @hookimpl
    def control(self, engine: Any) -> Any:
        self.engine = engine
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {"echo": self.echo, "burst": self.burst, "leak": object, "preempt": self.engine.preempt_all}

    def echo(self, value: object) -> object:
        return {"value": value, "array": np.arange(2)}

    def burst(self) -> None:
        raise OSError("no such device")

    def stats(self) -> Mapping[str, float]:
        return {"answers": 3}


class Gate(Base):
    """Holds the engine at the end of each step until the test lets it pass."""

    name = "gate"

    def __init__(self, config: object) -> None:
        self.passes = threading.Semaphore(0)

    @hookimpl
    def observe(self) -> Gate:
        return self

    def on_events(self, events: object) -> None:
        assert self.passes.acquire(timeout=10)


def gated_engine(*classes: type) -> tuple[Engine, Gate]:
    engine = virtual_engine(Gate, *classes)
    (gate,) = (each.instance for each in engine.parts.registry.plugins if each.name == "gate")
    assert isinstance(gate, Gate)
    return engine, gate


class Gateway:
    """The other end of the socket, in the test's own thread."""

    def __init__(self, pair: zmq.Socket[bytes]) -> None:
        self.pair = pair

    def tell(self, *messages: ForEngine) -> None:
        for message in messages:
            self.pair.send(encode(message))

    def hear(self, kind: type[Message], seconds: float = 10.0) -> Message:
        """The next message, which must be of this kind."""
        assert self.pair.poll(int(seconds * 1000)), f"nothing was said for {seconds} s"
        message: ForGateway = decode_for_gateway(self.pair.recv())
        assert isinstance(message, kind), message
        return message

    def hear_until_idle(self) -> list[Step]:
        steps = [self.hear(Step)]
        while steps[-1].gauges.num_running or steps[-1].gauges.num_waiting:
            steps.append(self.hear(Step))
        return steps


@contextmanager
def running(engine: Engine) -> Iterator[tuple[Gateway, threading.Thread]]:
    """The engine's loop in a thread, which is told to stop at the end."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as inside, context.socket(zmq.PAIR) as outside:
        inside.bind("inproc://engine")
        outside.connect("inproc://engine")
        process = EngineProcess(engine, engine.parts.registry.every("control", engine=engine), inside)
        thread = threading.Thread(target=process.run)
        thread.start()
        gateway = Gateway(outside)
        try:
            yield gateway, thread
        finally:
            if thread.is_alive():
                gateway.tell(Stop())
            thread.join(timeout=10)
        assert not thread.is_alive()


def request(name: str, num_tokens: int = 3, prompt: int = 4) -> Add:
    return Add(name, np.arange(prompt), SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True))


def test_what_a_step_has_to_say_comes_in_one_message() -> None:
    with running(virtual_engine()) as (gateway, _):
        gateway.pair.send(encode(request("a")))
        assert [len(step.emissions) for step in gateway.hear_until_idle()] == [1, 1, 1]
    engine = virtual_engine()
    for name in ("a", "b", "c"):
        add(engine, name, [1, 2], SamplingParams(max_tokens=2, ignore_eos=True))
    with running(engine) as (gateway, _):
        steps = gateway.hear_until_idle()
        assert [[emission.request for emission in step.emissions] for step in steps] == [["a", "b", "c"]] * 2


def test_the_numbers_are_those_after_the_step() -> None:
    engine = virtual_engine(num_blocks=4)
    with running(engine) as (gateway, _):
        gateway.tell(request("a", num_tokens=3, prompt=4))
        steps = [step.gauges for step in gateway.hear_until_idle()]
        assert [(each.num_running, each.kv_used, each.kv_total) for each in steps] == [(1, 1, 4), (1, 1, 4), (0, 0, 4)]
        assert [(each.num_steps, each.step_rows, each.step_tokens) for each in steps] == [
            (1, 1, 4),
            (2, 2, 5),
            (3, 3, 6),
        ]
        assert 0 < steps[0].step_seconds < steps[1].step_seconds


def test_a_request_that_can_never_run_is_refused_and_the_next_one_runs() -> None:
    with running(virtual_engine()) as (gateway, _):
        gateway.tell(request("empty", prompt=0), request("good"))
        assert gateway.hear(Refused) == Refused("empty", "the prompt is empty: send at least one token")
        assert gateway.hear_until_idle()[-1].emissions[0].finish_reason == "length"


def test_an_abort_is_seen_before_the_next_step() -> None:
    engine, gate = gated_engine()
    with running(engine) as (gateway, _):
        gateway.tell(request("a", num_tokens=40))
        gate.passes.release()
        gateway.hear(Step)
        gateway.tell(Abort("a"), Abort("unknown"))
        gate.passes.release(100)
        # the second step may have begun
        *before, last = [emission for step in gateway.hear_until_idle() for emission in step.emissions]
        assert (last.token_ids, last.finish_reason) == ((), "abort") and len(before) <= 1


def test_a_ticket_from_another_thread_wakes_the_loop_at_once() -> None:
    engine = virtual_engine()
    add(engine, "held", [1, 2], SamplingParams(max_tokens=1, ignore_eos=True), hold="key")
    with running(engine) as (gateway, _):
        assert gateway.hear(Step).gauges.num_held == 1
        started = time.monotonic()
        engine.complete("key")
        (emission,) = gateway.hear(Step).emissions
        assert emission.finish_reason == "length"
        assert time.monotonic() - started < 0.5


def test_who_waits_for_a_ticket_is_reported_each_second_and_costs_nothing() -> None:
    engine = virtual_engine()
    add(engine, "held", [1, 2], SamplingParams(max_tokens=1), hold="key")
    with running(engine) as (gateway, _):
        gateway.hear(Step)
        started, used = time.monotonic(), time.process_time()
        assert gateway.hear(Step).emissions == []
        assert 0.5 < time.monotonic() - started < 3
        assert time.process_time() - used < 0.3


def test_calls_are_answered() -> None:
    with running(virtual_engine(Talker)) as (gateway, _):
        gateway.tell(Command(7, "talker", "echo", {"value": [1, "x"]}), ReadStats(8), ReadAudit(9))
        assert gateway.hear(Answer) == Answer(7, {"value": [1, "x"], "array": [0, 1]})
        assert gateway.hear(Answer) == Answer(8, {"talker": {"answers": 3.0}})
        assert gateway.hear(Answer) == Answer(9, [])


def test_a_command_may_act_on_the_engine_between_two_steps() -> None:
    engine, gate = gated_engine(Talker)
    with running(engine) as (gateway, _):
        gateway.tell(request("a", num_tokens=30))
        gate.passes.release()
        gateway.hear(Step)
        gateway.tell(Command(1, "talker", "preempt", {}))
        gate.passes.release(100)
        heard = [gateway.hear(object)]
        while isinstance(heard[-1], Step):
            heard.append(gateway.hear(object))
        assert heard[-1] == Answer(1, 1) and len(heard) <= 2
        assert gateway.hear_until_idle()[-1].gauges.num_preempted == 1


def test_a_command_that_fails_names_its_plugin_and_the_engine_goes_on() -> None:
    with running(virtual_engine(Talker)) as (gateway, _):
        gateway.tell(Command(1, "talker", "burst", {}), Command(2, "talker", "leak", {}), Command(3, "x", "y", {}))
        failures = [gateway.hear(Failure) for _ in range(3)]
        assert [str(failure.error()) for failure in failures] == [
            "plugin 'talker' failed in burst: raised OSError: no such device",
            "plugin 'talker' failed in leak: raised TypeError: "
            "a value of type object cannot be sent to another process",
            "unknown plugin with commands 'x': valid are talker",
        ]
        assert [type(failure.error()).__name__ for failure in failures] == ["PluginFault", "PluginFault", "ConfigError"]
        gateway.tell(request("a"))
        assert gateway.hear_until_idle()


class Blind(Base):
    """Wraps the allocator in one that cannot say what it has, after so many times."""

    name = "blind"

    @hookimpl
    def allocate_kv(self, spec: Any, block_size: int, num_blocks: int, inner: Any) -> Any:
        return BlindSlots(inner)


class BlindSlots:
    num_looks = 2

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def num_free(self) -> int:
        self.num_looks -= 1
        if self.num_looks == 0:
            raise OSError("dark")
        return int(self.inner.num_free())

    def audit(self) -> Any:
        if self.num_looks > 0:
            raise OSError("dark")
        return self.inner.audit()


def test_an_audit_that_fails_is_the_plugins_fault() -> None:
    with running(virtual_engine(Blind)) as (gateway, _):
        gateway.tell(ReadAudit(1))
        error = gateway.hear(Failure).error()
        assert isinstance(error, PluginFault) and error.plugin == "blind"


def test_an_allocator_that_cannot_count_fails_the_rows_of_the_step_and_no_more() -> None:
    with running(virtual_engine(Blind)) as (gateway, _):
        gateway.tell(request("a"))
        *_, last = [emission for step in gateway.hear_until_idle() for emission in step.emissions]
        assert (last.finish_reason, last.error) == ("error", "plugin 'blind' failed in num_free: raised OSError: dark")
        gateway.tell(request("b"))
        assert gateway.hear_until_idle()[-1].emissions[0].finish_reason == "length"


def test_stopping_ends_what_runs() -> None:
    engine, gate = gated_engine()
    with running(engine) as (gateway, thread):
        gateway.tell(request("a", num_tokens=40))
        gate.passes.release()
        gateway.hear(Step)
        gateway.tell(Stop())
        gate.passes.release()
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert len(engine.requests) == 0 and engine.num_steps <= 2


def test_what_is_nobodys_fault_but_ours_ends_the_loop() -> None:
    engine = virtual_engine()
    with zmq.Context() as context, context.socket(zmq.PAIR) as inside, context.socket(zmq.PAIR) as outside:
        inside.bind("inproc://engine")
        outside.connect("inproc://engine")
        outside.send(b"garbage")
        process = EngineProcess(engine, [], inside)
        with pytest.raises(msgspec.DecodeError):
            process.run()
        process.wake.close()


def test_a_wake_is_never_lost_nor_left_behind() -> None:
    wake, poller = Wake(), zmq.Poller()
    poller.register(wake.receiver, zmq.POLLIN)
    for _ in range(3):
        wake.set()
        assert wake.is_set() and poller.poll(0)
        wake.clear()
        assert not wake.is_set() and not poller.poll(0)
    with suppress(BlockingIOError):
        while True:
            wake.sender.send(b"\0" * 4096)
    wake.set()
    wake.clear()
    assert not poller.poll(0)
    wake.close()
