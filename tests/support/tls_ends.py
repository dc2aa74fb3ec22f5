"""TLS at both ends of a wire in memory, and protocols that note what they are told."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from links import until
from transports import Recorder
from wires import pair

from aiozerocopy.transport.socket_transport import transport_over
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
    """A server's and a client's TLS, over wires in memory or over sockets."""

    def __init__(
        self,
        contexts: Contexts,
        above: Any = None,
        below: Any = None,
        connect: Callable[[Any, Any], Any] = pair,
        **options: Any,
    ) -> None:
        self.server: Any = above or Recorder()
        self.client: Any = below or Recorder()
        self.ready = asyncio.get_running_loop().create_future()
        self.upper = server(contexts, self.server, **options)
        self.lower = client(contexts, self.client, self.ready, **options)
        self.wires = connect(self.upper, self.lower)

    async def shake(self) -> Ends:
        await self.ready
        await until(lambda: not self.upper._timer)
        return self


def sockets(one: Any, other: Any) -> None:
    """Connect two protocols by this package's own transports."""
    loop = asyncio.get_running_loop()
    for sock, protocol in zip(socket.socketpair(), (one, other), strict=True):
        loop.call_soon(transport_over(sock, protocol).begin)


async def quiet() -> None:
    """Return when nothing is under way in memory."""
    for _ in range(100):
        await asyncio.sleep(0)


class Silent(asyncio.BufferedProtocol):
    """It reads, and says nothing."""

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1 << 16)

    def buffer_updated(self, nbytes: int) -> None:
        pass
