"""TLS of the transports: asyncio's own, over one of our transports, "the wire".

Who owns what
    plaintext   is the caller's again when `write` returns: it is encrypted at once.
                While the peer renegotiates (TLS 1.2) a copy of it waits
    ciphertext  waits in OpenSSL's memory while the wire is full, and then is the wire's

A signal's handler may raise at any line.  If that interrupts us between plaintext and
the wire, the connection ends: no data may follow the data that was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from asyncio.sslproto import SSLProtocol, _SSLProtocolTransport
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.change import Change
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.pins import bytes_of
from aiozerocopy.transport.reading import IN_PIECES, WAS_ABORTED, WAS_CLOSED, aborted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    Secure = Callable[..., "TLSProtocol"]
    Timeouts = tuple[float | None, float | None]  # of the handshake, and of the end


class TLSTransport(_SSLProtocolTransport):
    """The transport of a protocol if ``ssl=`` was given, or after `start_tls`.

    It is asyncio's own, but accepts any C-contiguous buffer, and has `drained`.
    """

    _ssl_protocol: TLSProtocol
    _line: list[asyncio.Event]  # as in `SocketTransport`

    if TYPE_CHECKING:  # (typeshed says that it is a dict)

        def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def write(self, data: Buffer) -> None:
        """Encrypt and send a buffer, which is yours again when this returns.

        Raises:
            TypeError, BufferError: not a C-contiguous buffer; nothing was sent.
            RuntimeError: `sendfile` is sending a file.
        """
        if self._line and not self._closed:
            raise RuntimeError(IN_PIECES)
        self._write_pieces([data])

    def _write_pieces(self, items: list[Buffer]) -> None:
        (data,) = items
        block = data if type(data) is bytes else bytes_of(data)
        try:
            super().write(block)
            if self._ssl_protocol._write_backlog:
                self._ssl_protocol.copy_what_waits()
        except BaseException:
            self._ssl_protocol.interrupted()
            raise

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Write all buffers as one."""
        self.write(b"".join(map(bytes_of, list_of_data)))

    async def drained(self) -> None:
        """Return when everything that was written is out.

        Over a transport that is not of this package, "out" means "written to it".

        Raises:
            OSError: something is not out, and never will be.
        """
        await self._ssl_protocol.drained()

    def close(self) -> None:
        """Send what was written, say goodbye to the peer, and close."""
        # (asyncio's method loses its protocol at a second call, and in Python 3.10 its
        # __del__ calls this even after the loop was closed)
        if not self._closed and not self._loop.is_closed():
            try:
                super().close()
            except BaseException:
                self._ssl_protocol.interrupted()
                raise


class TLSProtocol(SSLProtocol):
    """asyncio's protocol, but it knows when the wire has all of its data."""

    _conn_lost = 0  # (asyncio's has this from Python 3.11 on)

    def __init__(
        self,
        context: ssl.SSLContext | None,
        timeouts: Timeouts,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        **options: Any,
    ) -> None:
        options["ssl_handshake_timeout"], shutdown = timeouts
        if shutdown is not None:  # (asyncio has this option from Python 3.11 on)
            options["ssl_shutdown_timeout"] = shutdown
        given: tuple[Any, ...] = (protocol, context, waiter)
        super().__init__(asyncio.get_running_loop(), *given, **options)
        self.upper.__class__ = TLSTransport  # asyncio has no argument for the class
        self.upper._line = []
        self._wire: Any = None
        self._moved = Change()
        self._is_lost = False
        self._unsent: Failure[OSError] | None = None

    @property
    def upper(self) -> Any:
        """The transport of the program's protocol, until the connection is lost."""
        return self._app_transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport
        # (if the wire is paused now, it will call `resume_writing` later)
        self._ssl_writing_paused = getattr(transport, "_protocol_paused", False)
        self._owes_resume = self._ssl_writing_paused  # to the program's protocol
        super().connection_made(transport)

    if sys.version_info >= (3, 11):

        def _set_app_protocol(self, app_protocol: asyncio.BaseProtocol) -> None:
            super()._set_app_protocol(app_protocol)
            if isinstance(app_protocol, asyncio.BufferedProtocol):
                # asyncio slices the buffer: a bytearray's slice would be a copy.
                get = app_protocol.get_buffer
                self._app_protocol_get_buffer = lambda size: memoryview(get(size))

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self._moved.happen()

        def resume_writing(self) -> None:
            try:
                if self._owes_resume:
                    self._owes_resume = False
                    self._app_writing_paused = True  # by the wire, before `start_tls`
                super().resume_writing()
                self._moved.happen()
            except BaseException:
                self.interrupted()
                raise

        def _do_shutdown(self) -> None:
            """Drop what the peer still sends: to OpenSSL it would be an error."""
            theirs: Any = self  # (typeshed does not know these)
            if not theirs._eof_received:
                with contextlib.suppress(ssl.SSLError):
                    while theirs._sslobj.read(self.max_size):
                        pass
                theirs._control_ssl_reading()
            super()._do_shutdown()  # type: ignore[misc]

    else:

        def pause_writing(self) -> None:
            if self._wire is not None:  # (else it is the program's that was paused)
                super().pause_writing()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._process_write_backlog()  # (writes that waited for the peer)
            self._moved.happen()

    def interrupted(self) -> None:
        """Abort: data on its way to the wire may be lost, so none may follow it."""
        self._unsent = Failure(aborted(WAS_ABORTED))
        self._wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if isinstance(exc, OSError):
            self._unsent = Failure(exc)
        elif exc is not None or self._waiting():
            self._unsent = Failure(aborted(WAS_ABORTED))
        self.upper._closed = True  # (Python 3.10 would warn of it)
        super().connection_lost(exc)
        self._is_lost = True
        self._moved.happen()

    def copy_what_waits(self) -> None:
        """Copy the last write, which must wait as the peer renegotiates."""
        last: Any = self._write_backlog[-1]
        is_old = type(last) is tuple  # Python 3.10 adds how much of it is encrypted
        copy: Any = (bytes(last[0]), last[1]) if is_old else bytes(last)
        self._write_backlog[-1] = copy

    def _waiting(self) -> int:
        """Return how many bytes the wire has not got yet."""
        outgoing: Any = getattr(self, "_outgoing", None)  # (from Python 3.11 on)
        return self._write_buffer_size + (outgoing.pending if outgoing else 0)

    async def drained(self) -> None:
        """Do what `TLSTransport.drained` does."""
        while self._waiting() and not self._is_lost:
            await self._moved.next()
        if self._unsent is not None:
            raise self._unsent.again()
        # (asyncio counts there each write that it drops, and the loss itself)
        if self._conn_lost > self._is_lost or self._waiting():
            raise aborted(WAS_CLOSED)
        if hasattr(self._wire, "drained"):  # it is one of ours
            await self._wire.drained()


def for_client(
    given: Any, host: str | None, server_hostname: str | None, timeouts: Timeouts
) -> Secure | None:
    """Return what puts TLS under a client's protocol; None without TLS.

    Raises:
        ValueError: the arguments contradict each other.
    """
    if not given and server_hostname is not None:
        raise ValueError("server_hostname is only meaningful with ssl")
    if given and server_hostname is None:
        if not host:
            raise ValueError(
                "You must set server_hostname when using ssl without a host"
            )
        server_hostname = host
    return _asked_for(given, timeouts, server_hostname=server_hostname)


def for_server(given: Any, timeouts: Timeouts) -> Secure | None:
    """Do what `for_client` does, for a server.

    Raises:
        TypeError: ``ssl`` is not a context.
    """
    if given is True:
        raise TypeError("ssl argument must be an SSLContext or None")
    return _asked_for(given, timeouts, server_side=True)


def _asked_for(given: Any, timeouts: Timeouts, **options: Any) -> Secure | None:
    if given:
        context = None if given is True else given  # None: a client's default
        return partial(TLSProtocol, context, timeouts, **options)
    for name, seconds in zip(("handshake", "shutdown"), timeouts, strict=True):
        if seconds is not None:
            raise ValueError(f"ssl_{name}_timeout is only meaningful with ssl")
    return None
