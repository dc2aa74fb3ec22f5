"""A transport's life from connection_made to connection_lost, and its reading.

The states
    made      connection_made is called next
    open      the protocol gets the data that comes
    closing   after `close`, or after the peer's end: nothing is read any more, and
              written data goes out
    lost      the fd is closed; connection_lost will be called, or was

Who owns what
    the fd         belongs to the stream, which writes to it
    the buffers    belong to C as long as an operation uses them, even without us
    the transport  is kept by the loop while it reads, and by the port while data is
                   queued: so a program may drop it once it has closed it

Reading.  The loop reports that there is data.  A `Protocol` gets it, at most `MESSAGE`
or `BULK` bytes, as one bytes object, into which the kernel has written; a
`BufferedProtocol` gets it in its own buffer.  There is one read in each turn of the
loop, so that the program finds the data in the processor's cache, and can pause before
it has too much.  While reading is paused the fd stays watched until data comes: most
pauses are over by then, and so cost nothing.

A signal's handler may raise at any line.  If that interrupts the transport itself, the
connection ends: data just received may be lost, and then none may follow it.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
from os import read, readv
from typing import TYPE_CHECKING, Any

from aiozerocopy._core import fork_and_exit as process
from aiozerocopy._core.sending import SendStream
from aiozerocopy.transport.readiness import readiness_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.channel import Channel
    from aiozerocopy.opening import HasFileno

log: logging.Logger = logging.getLogger("aiozerocopy")


def os_error(error: BaseException) -> OSError:
    """Return the kernel's own error, which protocols expect."""
    if isinstance(error.__cause__, OSError):
        return error.__cause__
    return aborted(str(error))


def aborted(why: str) -> ConnectionAbortedError:
    """Return the error for data that was not sent."""
    return ConnectionAbortedError(errno.ECONNABORTED, why)


WAS_CLOSED = "the transport was written to after it was closed"
WAS_ABORTED = "the transport was aborted before all was out"
IN_PIECES = "a file is being sent in pieces: write after sendfile has returned"


class Out(SendStream):
    """A transport's stream.  Its name outlives its channel, which has the fd."""

    def __init__(self, channel: Channel) -> None:
        self._name = f"<transport fd={channel.fileno()}>"
        super().__init__(channel)

    def __repr__(self) -> str:
        return self._name


# glibc's malloc gets pieces of 128 KiB and more from the kernel, page by page, each
# time anew, until a bigger piece is freed: then it keeps pieces up to that size.  (Not
# if a MALLOC_... variable says otherwise: so only long reads use BULK.)
bytes(1 << 20)
MESSAGE = 120 << 10
BULK = 256 << 10

_NOTHING_NOW = (BlockingIOError, InterruptedError)


class Reading(asyncio.Transport):
    """The parts of a `SocketTransport` that do not write."""

    # The bases, asyncio's transports, have slots, so attributes are slow unless all of
    # them are slots.
    __slots__ = (
        *("__weakref__", "_loop", "_stream", "_fd", "_readiness", "_context"),
        *("_handle", "_protocol", "_is_made", "_closing", "_is_lost", "_is_untold"),
        *("on_lost", "_is_buffered", "_paused", "_is_watched", "_born", "_size"),
        *("_has_ended",),
    )

    if TYPE_CHECKING:
        _extra: dict[str, Any]
        _protocol: Any

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: Out,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
        handle: HasFileno | None,
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._stream = stream
        self._fd = stream.fileno()
        Reading.set_protocol(self, protocol)
        self._readiness = readiness_in(loop)
        self.on_lost: Callable[[], object] | None = None  # tells the server
        # The protocol's own context: the connecting caller does not see what it sets.
        self._context = contextvars.copy_context()
        # Another object for the same connection, closed after connection_lost.
        self._handle = handle
        self._is_made = False
        self._closing = False
        self._is_lost = False
        self._is_untold = False  # lost, and connection_lost was not called yet
        self._paused = False  # by pause_reading
        self._is_watched = False
        self._born = process.generation
        self._size = MESSAGE  # of the next read: BULK after a long one
        self._has_ended = False  # the peer sends no more

    def _claim(self, fd: int) -> None:
        """Have the loop refuse to watch this fd for others, as asyncio's own do."""
        getattr(self._loop, "_transports", {})[fd] = self

    def __repr__(self) -> str:
        state = "closed" if self._is_lost else "closing" if self._closing else "open"
        return f"<{type(self).__name__} fd={self._fd} {state}>"

    # -- the beginning ------------------------------------------------------------

    def begin(self) -> None:
        """Call connection_made, once, and read; if it raises, end the connection."""
        try:
            self._is_made = True
            self._claim(self._fd)
            if self._handle is not None:
                self._claim(self._handle.fileno())
            self._context.run(self._protocol.connection_made, self)
            self._start()
        except BaseException as error:
            self._lose(error)
            raise

    # -- flow control -------------------------------------------------------------

    def is_reading(self) -> bool:
        return not (self._closing or self._paused)

    def pause_reading(self) -> None:
        """Leave incoming data to the kernel.  Idempotent."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give incoming data to the protocol.  Idempotent."""
        self._paused = False
        if self._is_made:
            self._start()

    def _start(self) -> None:
        if self.is_reading() and not self._is_watched and not self._has_ended:
            watch = self._readiness.watch
            self._context.copy().run(watch, self._fd, self._readable)
            self._is_watched = True

    def _stop(self) -> None:
        self._readiness.pause(self._fd)
        self._is_watched = False

    # -- incoming data ------------------------------------------------------------

    def _readable(self) -> None:
        # (in a forked child it is the parent's to read)
        if self._closing or self._paused or self._born != process.generation:
            self._stop()
            return
        try:
            if self._is_buffered:
                self._read_into()
                return
            try:
                data = read(self._fd, self._size)
            except OSError as error:
                self._read_failed(error)
                return
            self._size = MESSAGE if len(data) < MESSAGE else BULK
            if data:
                self._protocol.data_received(data)
            else:
                self._end_reading()
        except BaseException as error:
            self._fail(error, "handling incoming data")
            if not isinstance(error, Exception):
                raise

    def _read_into(self) -> None:
        buffer = self._protocol.get_buffer(-1)
        if self._closing:  # (the fd's number may be another connection's by now)
            return
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        try:
            n = readv(self._fd, (buffer,))
        except OSError as error:
            self._read_failed(error)
            return
        if n:
            self._protocol.buffer_updated(n)
        else:
            self._end_reading()

    def _read_failed(self, error: OSError) -> None:
        if not isinstance(error, _NOTHING_NOW):
            self._lose(error)

    def _end_reading(self) -> None:
        """Close, as the peer sends no more, unless the protocol goes on writing."""
        self._has_ended = True
        self._stop()
        if not self._protocol.eof_received():
            self.close()

    # -- the end ------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        """Close at once: written data that is not out is lost.

        `drained` raises then, and connection_lost gets None, as in asyncio.
        """
        self._lose(None)

    def _fail(self, error: BaseException, caller: str) -> None:
        """End the connection, as the protocol or the transport itself has raised."""
        if isinstance(error, Exception):
            self._report(error, caller)
        self._lose(error)

    def _report(self, error: BaseException, caller: str) -> None:
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
        try:
            self._is_lost = True  # (operations that the abort ends call this again)
            self._readiness.forget(self._fd)
            self._stream.abort()
            self._is_untold = self._is_made and self._protocol is not None
            if self._loop.is_closed():  # (we are being collected): no call is possible
                return
            for _ in range(2):  # the first call may be interrupted before it begins
                self._loop.call_soon(self._end, error, context=self._context)
        except BaseException:
            self._is_lost = False
            raise

    def _end(self, error: BaseException | None) -> None:
        """Call connection_lost once.  The loop calls this more than once."""
        try:
            if self._is_untold:
                told = self._protocol.connection_lost
                # (One line without a call: else a signal's exception may come between.)
                self._is_untold = False; told(error)  # noqa: E702  # fmt: skip
        finally:
            if not self._is_untold:
                self._protocol = None
                if self._handle is not None:
                    self._handle.close()
                if self.on_lost is not None:
                    self.on_lost()
                    self.on_lost = None  # (which refers to us)

    # -- the protocol -------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol; None once connection_lost was called."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol
