from __future__ import annotations

import errno
import socket
import sys

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.gateway import listening
from switchgear.core.gateway.listening import listen, url_of


def test_a_free_port_is_named_and_takes_connections_before_anybody_accepts() -> None:
    with listen("127.0.0.1", 0) as listener:
        url = url_of(listener)
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
def test_a_client_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "UNREAD_SECONDS", 1)
    with listen("127.0.0.1", 0) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        with listener.accept()[0] as connection, pytest.raises(OSError) as error:
            while True:
                connection.sendall(bytes(1_000_000))
        assert error.value.errno in (errno.ETIMEDOUT, errno.ECONNRESET)


def test_a_port_that_is_taken_is_one_sentence_with_the_remedy() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1 port .*in use.*--port"),
    ):
        listen("127.0.0.1", listener.getsockname()[1])


def test_a_host_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203.0.113.9 port 0"):
        listen("203.0.113.9", 0)


def test_every_address_is_shown_as_one_that_works() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")
