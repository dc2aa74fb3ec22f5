"""``azc+tls://host:port``: as ``azc://``, under TLS."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import anyio
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.comm.tcp import BaseTCPBackend

from aiozerocopy._core.errors import IncompleteReceive
from aiozerocopy._net.tls_session import Session
from aiozerocopy.dask.comm import LOST, Link, logger, timeout
from aiozerocopy.dask.tcp import TCPComm, TCPConnector, TCPListener

if TYPE_CHECKING:
    import socket

    from typing_extensions import Buffer

    from aiozerocopy.streams import Stream

PIECE = 256 << 10  # bytes that are encrypted at once
ARRIVED = 128 << 10  # bytes that are received at once; each connection has this memory


class SecureStream:
    """TLS over a stream of ours, with as much of a stream as a comm needs.

    Shake hands first.  Python's ssl encrypts from one memory to another, and the stream
    carries the result.  What arrives is decrypted to where it belongs, without a copy
    more.

    One task at a time may receive, and one may send; the two may be different ones,
    since neither awaits between what it takes out of ssl and what it submits to the
    stream.  The stream is this one's from the start, and is closed with it.  A method
    raises what the stream's own does, and ssl.SSLError.
    """

    # What TLS says when it ends has up to 31 bytes on the wire.  The smallest message
    # of Dask's has 47: 25 of its own, and a record's frame.
    goodbye = 40

    def __init__(self, stream: Stream, session: Session) -> None:
        self._stream = stream
        self._arrived = memoryview(bytearray(ARRIVED))
        self.session = session

    async def handshake(self) -> None:
        """Agree with the peer on keys."""
        try:
            while not self.session.shake():
                await self._pass_on()
                await self._take_in()
        except ssl.SSLError:
            with contextlib.suppress(anyio.BrokenResourceError):
                await self._pass_on()  # which tells the peer what is wrong
            raise
        await self._pass_on()

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        for buffer in (item, *more):
            with memoryview(buffer) as view:  # (a traceback may keep this frame)
                for start in range(0, len(view), PIECE):
                    with view[start : start + PIECE] as piece:
                        self.session.encrypt(piece)
                    await self._pass_on()

    async def receive_exactly(self, buffer: Buffer) -> None:
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
        session = self.session
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
        if self.session.has_sealed():
            await self._stream.send(self.session.take())

    async def _take_in(self) -> None:
        n = await self._stream.receive_into(self._arrived)
        self.session.feed(self._arrived[:n])

    async def aclose(self) -> None:
        """Send what was accepted, say goodbye, then close."""
        self.session.say_goodbye()
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
            self.session.has_arrived(beyond=self.goodbye) or self._stream._has_unread()
        )


class TLSComm(TCPComm):
    """``azc+tls://``"""

    stream: SecureStream
    _goodbye = SecureStream.goodbye

    def __init__(self, stream: SecureStream, *args: Any) -> None:
        super().__init__(stream, *args)
        known = stream.session.known()
        self._extra = {name: known[name] for name in ("peercert", "cipher")}


class TLSConnector(TCPConnector):
    prefix = "azc+tls://"
    comm_class: type[TLSComm] = TLSComm
    encrypted = True

    async def _link(self, stream: Stream, address: str, args: dict[str, Any]) -> Link:
        context = tls_context(self.prefix, args)
        host = args.get("server_hostname") or parse_host_port(address)[0]
        session = Session(context, server_side=False, server_hostname=host)
        secure = SecureStream(stream, session)
        try:
            await secure.handshake()
        except ssl.SSLError as error:
            raise FatalCommClosedError(
                f"TLS with {self.prefix}{address} failed: {error}"
            ) from error
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise CommClosedError(
                f"{self.prefix}{address} has closed the connection in TLS's handshake"
            ) from error
        return secure


class TLSListener(TCPListener):
    prefix = "azc+tls://"
    comm_class: type[TLSComm] = TLSComm
    encrypted = True

    def __init__(self, *args: Any, **connection_args: Any) -> None:
        """As for all; raises TypeError if Dask was given no certificates."""
        super().__init__(*args, **connection_args)
        self._context = tls_context(self.prefix, connection_args)

    async def _link(self, stream: Stream, peer: str) -> Link | None:
        secure = SecureStream(stream, Session(self._context, server_side=True))
        try:
            with anyio.fail_after(timeout("connect")):
                await secure.handshake()
        except (*LOST, TimeoutError) as error:
            logger.warning("TLS with %s failed: %s", peer, str(error) or "it has left")
            return None
        return secure


class TLSBackend(BaseTCPBackend):
    """``azc+tls://host:port``: as Dask's ``tls://``."""

    _connector_class: type[TLSConnector] = TLSConnector
    _listener_class: type[TLSListener] = TLSListener


def tls_context(prefix: str, connection_args: dict[str, Any]) -> ssl.SSLContext:
    """The context that Dask's `Security` has made; TypeError if it has made none."""
    context = connection_args.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"{prefix} needs an ssl_context, not {context!r}: give Dask certificates, "
            "by security=Security(...) or in its configuration"
        )
    return context
