"""TLS over a stream of ours, with as much of a stream as a comm needs.

Python's ssl encrypts from one memory to another, and the stream carries the result.
What arrives is decrypted to where it belongs, without a copy more.

One task at a time may receive, and one may send; the two may be different ones, since
neither awaits between what it takes out of ssl and what it submits to the stream.  The
stream is ours from the start, and is closed with this.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core.errors import IncompleteReceive
from aiozerocopy._net.tls_session import Session

if TYPE_CHECKING:
    import socket

    from typing_extensions import Buffer

    from aiozerocopy.streams import Stream

PIECE = 256 << 10  # bytes that are encrypted at once
ARRIVED = 128 << 10  # bytes that are received at once; each connection has this memory


class SecureStream:
    """A stream that is encrypted; shake hands first."""

    # What TLS says when it ends has up to 31 bytes on the wire.  The smallest message
    # of Dask's has 47: 25 of its own, and a record's frame.
    goodbye = 40

    def __init__(
        self,
        stream: Stream,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self._stream = stream
        self._arrived = memoryview(bytearray(ARRIVED))
        self._session = Session(
            context, server_side=server_side, server_hostname=server_hostname
        )

    async def handshake(self) -> None:
        """Agree with the peer on keys.

        Raises: ssl.SSLError; EndOfStream, StreamBroken, StreamClosed.
        """
        try:
            while not self._session.shake():
                await self._pass_on()
                await self._take_in()
        except ssl.SSLError:
            with contextlib.suppress(anyio.BrokenResourceError):
                await self._pass_on()  # which tells the peer what is wrong
            raise
        await self._pass_on()

    @property
    def extra(self) -> dict[str, Any]:
        """What Dask wants to know of a connection with TLS."""
        known = self._session.known()
        return {name: known[name] for name in ("peercert", "cipher")}

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Send the buffers as one message; when this returns they are yours again.

        Raises: as `Stream.send`; ssl.SSLError.
        """
        for buffer in (item, *more):
            with memoryview(buffer) as view:  # (a traceback may keep this frame)
                for start in range(0, len(view), PIECE):
                    with view[start : start + PIECE] as piece:
                        self._session.encrypt(piece)
                    await self._pass_on()

    async def receive_exactly(self, buffer: Buffer) -> None:
        """Fill the whole buffer.

        Raises: as `Stream.receive_exactly`; ssl.SSLError.
        """
        view = memoryview(buffer)
        filled = 0
        while filled < len(view):
            n = await self._read(view[filled:])
            if n == 0:
                if filled:
                    raise IncompleteReceive(filled, len(view))
                raise anyio.EndOfStream
            filled += n

    async def _read(self, view: memoryview) -> int:
        """Decrypt some bytes to there; 0 at the end."""
        session = self._session
        while not (n := session.decrypt_into(view)):
            if session.error is not None:
                raise session.error
            await self._pass_on()
            if session.ended:
                return 0
            try:
                await self._take_in()
            except anyio.EndOfStream:
                return 0
        return n

    async def _pass_on(self) -> None:
        if self._session.has_sealed():
            await self._stream.send(self._session.take())

    async def _take_in(self) -> None:
        n = await self._stream.receive_into(self._arrived)
        self._session.feed(self._arrived[:n])

    async def aclose(self) -> None:
        """Send what was accepted, say goodbye, then close.

        Raises: as `Stream.aclose`.
        """
        self._session.say_goodbye()
        try:
            with contextlib.suppress(anyio.BrokenResourceError):
                await self._pass_on()  # (nobody waits for an answer)
        finally:
            await self._stream.aclose()

    def abort(self) -> None:
        """Close at once, without a goodbye."""
        self._stream.abort()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def _raw_socket(self) -> socket.socket:
        return self._stream._raw_socket

    def _has_unread(self) -> bool:
        return (
            self._session.has_arrived(beyond=self.goodbye) or self._stream._has_unread()
        )
