"""The streams: SendStream, ReceiveStream, and Stream for both directions of a socket.

They are anyio's ``ByteSendStream``, ``ByteReceiveStream`` and ``ByteStream``, so all
that is built for those works over them.  How each is done: `_core.sending`,
`_core.receiving`, and `_core.lifetime` for what they share.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.file import FileStreamAttribute

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.lifetime import NOWHERE
from aiozerocopy._core.receiving import ReceiveStream as ReceiveStream
from aiozerocopy._core.sending import QUEUE_LIMIT, RESCUE_LIMIT
from aiozerocopy._core.sending import SendStream as SendStream
from aiozerocopy._core.sending import Ticket as Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.lifetime import Stats as Stats


class Stream(SendStream, ReceiveStream, ByteStream):
    """A connected stream socket: both directions, each as documented there."""

    def __init__(
        self,
        channel: Channel,
        *,
        rescue_limit: int = RESCUE_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        self._receive_from(channel.opposite())
        self._socket: socket.socket | None = None
        SendStream.__init__(
            self, channel, rescue_limit=rescue_limit, queue_limit=queue_limit
        )
        self._channels = (channel, self._in)

    async def send_eof(self) -> None:
        """Send what was accepted, then tell the peer that no more will come.

        Receiving goes on.  Called again, it does nothing.

        Raises: as `flush`.
        """
        if self._eof:
            return
        await self.flush()
        self._eof, self._loop = True, NOWHERE
        self._out.shutdown()

    async def aclose(self) -> None:
        """Send what was accepted, then close both directions.

        Raises: as `SendStream.aclose`.
        """
        await SendStream.aclose(self)

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.detach()

    @property
    def stats(self) -> Stats:
        """Counters of both directions, as of now."""
        received = self._in.stats()
        return replace(
            super().stats,
            bytes_received=received.bytes,
            receive_calls=received.calls,
            receive_waits=received.waits,
        )

    # -- what anyio and others ask a socket ---------------------------------------

    @property
    def _raw_socket(self) -> socket.socket:
        """Our fd as a socket object: look at it, set options, leave the I/O to us."""
        if self._closed:
            raise StreamClosed("the stream is closed")
        if self._socket is None:
            self._socket = socket.socket(fileno=self.fileno())
        return self._socket

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        raw = self._raw_socket
        attributes: dict[Any, Callable[[], Any]] = {
            FileStreamAttribute.fileno: self.fileno,
            SocketAttribute.raw_socket: lambda: raw,
            SocketAttribute.family: lambda: raw.family,
            SocketAttribute.local_address: lambda: _plain_address(raw.getsockname()),
            SocketAttribute.remote_address: lambda: _plain_address(raw.getpeername()),
        }
        if raw.family in (socket.AF_INET, socket.AF_INET6):
            attributes[SocketAttribute.local_port] = lambda: raw.getsockname()[1]
            attributes[SocketAttribute.remote_port] = lambda: raw.getpeername()[1]
        return attributes


def _plain_address(address: Any) -> Any:
    """As anyio gives it: (host, port), or a path as str."""
    if isinstance(address, tuple):
        return address[:2]
    return os.fsdecode(address) if isinstance(address, bytes) else address
