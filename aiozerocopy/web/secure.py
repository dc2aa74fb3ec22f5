"""The web server's connections: plain ones as they are, and TLS made to look alike.

TLS is not without a copy: every byte is encrypted from user memory into other user
memory, for each viewer again.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, TypeAlias, cast

from anyio.streams.tls import TLSStream

from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._net.foreign_streams import WholeSender

if TYPE_CHECKING:
    import socket

    from anyio.abc import ByteStream
    from typing_extensions import Buffer

    from aiozerocopy.streams import Stream


class SecureStream(WholeSender):
    """TLS over a stream of ours, with what the web server needs of both."""

    def __init__(self, tls: TLSStream) -> None:
        super().__init__(tls)
        self._tls = tls
        self._plain = cast("Stream", tls.transport_stream)

    @property
    def _raw_socket(self) -> socket.socket:
        return self._plain._raw_socket

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        try:
            await super().send(item, *more)
        except ssl.SSLError as error:
            raise StreamBroken(f"TLS: {error}") from error

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """As `Stream.receive`.

        Raises:
            EndOfStream, StreamBroken, StreamClosed: as there.
        """
        try:
            return await self._tls.receive(max_bytes)
        except ssl.SSLError as error:
            raise StreamBroken(f"TLS: {error}") from error

    async def send_eof(self) -> None:
        """Nothing to do: half of a TLS connection cannot be closed."""

    def abort(self) -> None:
        """Close at once, without a goodbye."""
        self._plain.abort()


Connection: TypeAlias = "Stream | SecureStream"


def connection_over(stream: ByteStream) -> Connection:
    """What `serving` admitted, plain or TLS."""
    return (
        SecureStream(stream)
        if isinstance(stream, TLSStream)
        else cast("Stream", stream)
    )
