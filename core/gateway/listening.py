"""The port of a server: taken before anything heavy starts, so that nobody waits to hear that it is not free."""

from __future__ import annotations

import socket
import sys

from ..errors import ConfigError

BACKLOG = 2048
"""Connections that may wait until the event loop runs, or is busy."""

PROBE_SECONDS = 15
"""How often a silent client is asked whether it is still there."""
UNREAD_SECONDS = 60
"""How long a client may take nothing of what is sent to it, probes included: until then its answer grows here."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on. port: 0 for a free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            watch_clients(listener)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port} ({reason}): choose others with --host and --port"
        ) from error
    return listener


def watch_clients(listener: socket.socket) -> None:
    """Let the system cut the connections that this socket will take, where their clients have stopped to take part."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds the server."""
    host, port, *_ = listener.getsockname()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
