"""The transport of a connected stream socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from asyncio.trsock import TransportSocket
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.channel import OUT, Channel
from aiozerocopy.opening import set_buffer
from aiozerocopy.transport.lifetime import Out
from aiozerocopy.transport.reading import Reading
from aiozerocopy.transport.writing import Writing

if TYPE_CHECKING:
    from collections.abc import Callable


class SocketTransport(Writing, Reading, asyncio.Transport):
    """Both directions of a TCP or Unix connection: an `asyncio.Transport`.

    Made by `create_connection` and its like.
    """

    # For asyncio's TLS above it, as `_protocol_paused` and `_paused` are.
    _start_tls_compatible = True
    _force_close = Writing._lose

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known: "socket", "sockname" and "peername".

        The socket is another number of the same connection, for setsockopt and the
        like, and is closed after connection_lost.
        """
        if name == "socket" and name not in self._extra and not self._is_lost:
            self._handle = sock = socket.socket(fileno=os.dup(self._fd))
            self._claim(sock.fileno())
            self._extra[name] = TransportSocket(sock)
        return super().get_extra_info(name, default)


def transport_over(
    sock: socket.socket, protocol: asyncio.BaseProtocol, *, is_given: bool = False
) -> SocketTransport:
    """A transport over a connected socket, which it takes over; `begin` is next.

    A socket that the program has given stays one, until it is closed with the
    transport: the transport then has a number of its own for the connection.
    """
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:  # (as `stream_over` does)
        set_buffer(sock)
    elif sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the peer may have gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    extra = {"sockname": _name(sock.getsockname), "peername": _name(sock.getpeername)}
    if is_given:
        extra["socket"] = TransportSocket(sock)
        stream = Out(Channel(os.dup(sock.fileno()), OUT))
        return SocketTransport.over(stream, protocol, extra, sock)
    return SocketTransport.over(Out(Channel(sock.detach(), OUT)), protocol, extra)


def _name(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except OSError:  # it is not connected any more
        return None
