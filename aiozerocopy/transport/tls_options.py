"""What ``ssl=`` and its companions ask for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

TIMEOUTS = {"handshake": 60.0, "shutdown": 30.0}  # seconds, as asyncio has them


@dataclass
class TLSOptions:
    """How a connection is to be encrypted; the timeouts get their defaults.

    Raises: as `connections.start_tls`.
    """

    context: ssl.SSLContext
    server_side: bool = False
    server_hostname: str | None = None
    handshake_timeout: float | None = None
    shutdown_timeout: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.context, ssl.SSLContext):
            raise TypeError(f"an ssl.SSLContext is expected, not {self.context!r}")
        if self.server_side:
            self.server_hostname = None
        self.handshaking: float = _seconds("handshake", self.handshake_timeout)
        self.leaving: float = _seconds("shutdown", self.shutdown_timeout)


def _seconds(name: str, given: float | None) -> float:
    if given is not None and given <= 0:
        raise ValueError(f"ssl_{name}_timeout should be a positive number, got {given}")
    return TIMEOUTS[name] if given is None else given


def for_client(
    given: Any, host: str | None, server_hostname: str | None, *timeouts: float | None
) -> TLSOptions | None:
    """What the arguments of a client ask for; None if no TLS.

    The timeouts are the handshake's and the shutdown's.  Raises TypeError if ``ssl`` is
    neither true nor a context, and ValueError if the arguments contradict each other.
    """
    if not given:
        if server_hostname is not None:
            raise ValueError("server_hostname is only meaningful with ssl")
        _check_absent(*timeouts)
        return None
    if server_hostname is None:
        if not host:
            raise ValueError(
                "You must set server_hostname when using ssl without a host"
            )
        server_hostname = host
    if given is True:
        given = ssl.create_default_context()
        given.check_hostname = bool(server_hostname)
    return TLSOptions(given, False, server_hostname, *timeouts)


def for_server(given: Any, *timeouts: float | None) -> TLSOptions | None:
    """The same for a server."""
    if not given:
        _check_absent(*timeouts)
        return None
    return TLSOptions(given, True, None, *timeouts)


def _check_absent(handshake: float | None, shutdown: float | None) -> None:
    for name, value in (("handshake", handshake), ("shutdown", shutdown)):
        if value is not None:
            raise ValueError(f"ssl_{name}_timeout is only meaningful with ssl")
