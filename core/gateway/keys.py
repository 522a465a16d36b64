"""API keys: a file of hashes says which keys there are, to which tenant each belongs, and which may administer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .openai.errors import unauthorized

LINE = re.compile(r"sha256:([0-9a-f]{64})\s+([\w.@-]{1,64})(?:\s+(admin))?", re.ASCII)
PREFIX = "sk-switchgear-"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the credentials say."""

    tenant: str = ""
    is_admin: bool = False
    """Whether plugins' commands may be run."""


class Keys:
    """The keys of one server, by hash, so that neither the file nor this process can give one away.

    Without any, everybody may ask, and this machine may administer.
    """

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = dict(callers)

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Read a file with a line for each key: `sha256:HEX TENANT [admin]`. Raises ConfigError with the line."""
        try:
            # some editors put a mark in front, which is no part of the first line
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys in {path}: {error}") from error
        callers: dict[bytes, Caller] = {}
        for number, line in enumerate(lines, start=1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            match = LINE.fullmatch(text)
            if match is None:
                raise ConfigError(
                    f"line {number} of {path} is no API key: write 'sha256:HEX TENANT' or 'sha256:HEX TENANT admin', "
                    "as `switchgear keys new` prints it"
                )
            digest, tenant, admin = bytes.fromhex(match[1]), match[2], match[3]
            if digest in callers:
                raise ConfigError(f"line {number} of {path} repeats the API key of another line: remove one of them")
            callers[digest] = Caller(tenant, is_admin=bool(admin))
        if not callers:
            raise ConfigError(f"{path} holds no API keys, so nobody could ask: add a line by `switchgear keys new`")
        return cls(callers)

    @property
    def are_needed(self) -> bool:
        return bool(self._callers)

    def caller_of(self, headers: Mapping[str, str], host: str) -> Caller:
        """Who sent a request with these headers from this address. Raises ApiError, a 401."""
        if not self._callers:
            # a page in a browser on this machine comes from loopback as well, and has an origin
            return Caller(is_admin=is_loopback(host) and "origin" not in headers)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise unauthorized("This server needs an API key: send it as `authorization: Bearer KEY`.")
        digest = digest_of(key.strip())
        # every line is compared, and each in constant time
        found = [caller for known, caller in self._callers.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise unauthorized("This API key is unknown: ask whoever runs the server for a valid one.")
        return found[0]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_key() -> str:
    """A key that nobody can guess: 256 random bits, so that a plain hash of it is safe to keep."""
    return PREFIX + secrets.token_urlsafe(32)


def line_of(key: str, tenant: str, is_admin: bool = False) -> str:
    """What goes into the file for a key. Raises ConfigError for a tenant that a line cannot hold."""
    line = f"sha256:{digest_of(key).hex()} {tenant}{' admin' if is_admin else ''}"
    if not LINE.fullmatch(line):
        raise ConfigError(f"tenant {tenant!r} is no name: use 1 to 64 letters, digits and any of . _ @ -")
    return line


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
