"""TLS at both ends of a socket pair, and protocols that note what they are told."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from links import until
from transports import Recorder

from aiozerocopy.transport.socket_transport import SocketTransport, transport_over
from aiozerocopy.transport.tls import TLSOptions, TLSTransport

Contexts = tuple["ssl.SSLContext", "ssl.SSLContext"]  # of a server and of a client


def server(
    contexts: Contexts, protocol: Any, ready: Any = None, **options: Any
) -> TLSTransport:
    """What a server's protocol is put under."""
    options = {"server_side": True, **options}
    return TLSTransport(protocol, TLSOptions(contexts[0], **options), ready)


def client(
    contexts: Contexts, protocol: Any, ready: Any = None, **options: Any
) -> TLSTransport:
    """What a client's protocol is put under."""
    options = {"server_hostname": "localhost", **options}
    return TLSTransport(protocol, TLSOptions(contexts[1], **options), ready)


class Ends:
    """A server's and a client's TLS over this package's own transports, the wires."""

    def __init__(
        self,
        contexts: Contexts,
        above: Any = None,
        below: Any = None,
        **options: Any,
    ) -> None:
        self.server: Any = above or Recorder()
        self.client: Any = below or Recorder()
        self.ready = asyncio.get_running_loop().create_future()
        self.upper = server(contexts, self.server, **options)
        self.lower = client(contexts, self.client, self.ready, **options)
        self.wires = pair(self.upper, self.lower)

    async def shake(self) -> Ends:
        await self.ready
        await until(lambda: not self.upper._timer)
        return self

    def abort(self) -> None:
        for wire in self.wires:
            wire.abort()


Joined = Callable[..., Ends]


def pair(one: Any, other: Any) -> tuple[SocketTransport, SocketTransport]:
    """Connect two protocols."""
    left, right = socket.socketpair()
    wires = transport_over(left, one), transport_over(right, other)
    for wire in wires:
        asyncio.get_running_loop().call_soon(wire.begin)
    return wires


def narrow(wire: SocketTransport) -> None:
    """Let its socket take less at once than one record."""
    sock = wire.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 5000)


async def quiet() -> None:
    """Return when nothing is under way that a socket takes at once."""
    for _ in range(100):
        await asyncio.sleep(0)


class Silent(asyncio.BufferedProtocol):
    """It reads, and says nothing."""

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1 << 16)

    def buffer_updated(self, nbytes: int) -> None:
        pass
