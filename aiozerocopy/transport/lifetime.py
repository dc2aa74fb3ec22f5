"""A transport's way from connection_made to connection_lost.

The states
    made      connection_made will be called by the loop
    open      the protocol hears of what comes
    closing   by `close`, or at the end of what comes: nothing is read any more, and
              what was written goes out
    lost      the fd is closed; connection_lost will be called, or was

Who owns what
    the fd         is the stream's: `SendStream` or `ReceiveStream`, whose end it is
    the buffers    are C's as long as an operation uses them, whatever becomes of us
    the transport  is the loop's while it is read from, and the port's while anything
                   is queued: so it may be dropped by whoever has closed it

An exception that interrupts the transport itself, as a signal's handler may at any
line, ends the connection: what was just received may be lost, and then nothing may
follow it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from asyncio.trsock import TransportSocket
from typing import TYPE_CHECKING, Any

from aiozerocopy.transport.readiness import readiness_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozerocopy._core.lifetime import Bound
    from aiozerocopy.opening import HasFileno

log = logging.getLogger("aiozerocopy")


def os_error(error: BaseException) -> OSError:
    """The kernel's own error, which is what protocols know."""
    if isinstance(error.__cause__, OSError):
        return error.__cause__
    return ConnectionAbortedError(errno.ECONNABORTED, str(error))


@contextlib.contextmanager
def aborted_if_it_fails(stream: Bound) -> Iterator[None]:
    """A block that makes a transport over the stream."""
    try:
        yield
    except BaseException:
        stream.abort()
        raise


class Lifetime(asyncio.BaseTransport):
    """What all transports share."""

    if TYPE_CHECKING:
        _extra: dict[str, Any]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: Bound,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._stream = stream
        self._fd = stream.fileno()
        self._protocol: Any = protocol
        self._readiness = readiness_in(loop)
        self.on_lost: Callable[[], object] | None = None  # a server is to know
        # Another object for the same connection, closed after connection_lost.
        self._handle: HasFileno | None = None
        self._is_made = False
        self._closing = False
        self._is_lost = False

    def __repr__(self) -> str:
        state = "closed" if self._is_lost else "closing" if self._closing else "open"
        return f"<{type(self).__name__} fd={self._fd} {state}>"

    # -- its beginning ------------------------------------------------------------

    def begin(self, made: asyncio.Future[None] | None = None) -> None:
        """Call connection_made, then tell ``made``.  Called by the loop, once."""
        failure: BaseException | None = None
        if not self._closing:
            self._is_made = True
            try:
                self._protocol.connection_made(self)
                self._start()
            except BaseException as error:
                failure = error
                self._fail(error, "connection_made", report=made is None)
                if not isinstance(error, Exception):
                    raise
        if made is not None and not made.done():
            if failure is None:
                made.set_result(None)
            else:
                made.set_exception(failure)

    def _start(self) -> None:
        """A hook: connection_made was called."""

    def _stop(self) -> None:
        """A hook: nothing is read any more.  May be called twice."""

    # -- its end ------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Was it closed, by whichever side?"""
        return self._closing

    def close(self) -> None:
        """Read no more; send what was written, then call connection_lost(None)."""
        if self._is_lost:
            return
        self._closing = True
        self._stop()
        self._finish()

    def abort(self) -> None:
        """Close at once: what was written and is not out is lost.

        `drained` raises then, and connection_lost gets None, as asyncio has it.
        """
        self._lose(None)

    def _finish(self) -> None:
        """It is closing: end as soon as all is out."""
        self._lose(None)

    def _fail(self, error: BaseException, caller: str, *, report: bool = True) -> None:
        """The protocol, or the transport itself, has raised: end the connection."""
        if report and isinstance(error, Exception):
            self._report(error, caller)
        self._lose(error)

    def _report(self, error: BaseException, caller: str) -> None:
        """Tell the loop's handler of exceptions."""
        self._loop.call_exception_handler(
            {
                "message": f"the protocol of a transport failed in {caller}",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )

    def _lose(self, error: BaseException | None) -> None:
        """Close the fd now, and call connection_lost soon.  May be called twice."""
        self._closing = True
        if self._is_lost:
            return
        if error is not None and self._loop.get_debug():
            log.debug("%r is lost: %r", self, error)
        self._is_lost = True  # (what ends by the abort comes back here)
        try:
            if not self._stream._channels[0].inherited:  # else the parent reads there
                self._readiness.forget(self._fd)
            self._stream.abort()
            self._loop.call_soon(self._end, error)
        except BaseException:
            self._is_lost = False
            raise

    def _end(self, error: BaseException | None) -> None:
        """Call connection_lost.  Called by the loop."""
        protocol, self._protocol = self._protocol, None
        try:
            if self._is_made and protocol is not None:
                protocol.connection_lost(error)
        finally:
            if self._handle is not None:
                self._handle.close()
            on_lost, self.on_lost = self.on_lost, None
            if on_lost is not None:
                on_lost()

    # -- what can be asked --------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """From now on this one is told."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told; None once connection_lost was called."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known: "socket", "sockname", "peername", "pipe" and others.

        The socket is another number of the same connection, for setsockopt and the
        like, and is closed after connection_lost.
        """
        if name == "socket" and name not in self._extra and self._has_socket():
            self._handle = sock = socket.socket(fileno=os.dup(self._fd))
            self._extra[name] = TransportSocket(sock)
        return self._extra.get(name, default)

    def _has_socket(self) -> bool:
        return False
