"""A transport's way from connection_made to connection_lost.

The states
    made      connection_made is called next
    open      the protocol hears of what comes
    closing   by `close`, or at the end of what comes: nothing is read any more, and
              what was written goes out
    lost      the fd is closed; connection_lost will be called, or was

Who owns what
    the fd         is the stream's, which writes to it; reading is done here
    the buffers    are C's as long as an operation uses them, whatever becomes of us
    the transport  is the loop's while it is read from, and the port's while anything
                   is queued: so a program may drop it once it has closed it

An exception that interrupts the transport itself, as a signal's handler may at any
line, ends the connection: what was just received may be lost, and then nothing may
follow it.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.sending import SendStream
from aiozerocopy.transport.readiness import readiness_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from aiozerocopy._core.channel import Channel
    from aiozerocopy.opening import HasFileno

log: logging.Logger = logging.getLogger("aiozerocopy")


def os_error(error: BaseException) -> OSError:
    """The kernel's own error, which is what protocols know."""
    if isinstance(error.__cause__, OSError):
        return error.__cause__
    return aborted(str(error))


def aborted(why: str) -> ConnectionAbortedError:
    """The error of something that was not sent."""
    return ConnectionAbortedError(errno.ECONNABORTED, why)


WAS_CLOSED = "it was written to after it was closed"
WAS_ABORTED = "it was aborted before all was out"


class Out(SendStream):
    """A transport's stream.  Its name outlives its channel, which has the number."""

    def __init__(self, channel: Channel) -> None:
        self._name = f"<transport fd={channel.fileno()}>"
        super().__init__(channel)

    def __repr__(self) -> str:
        return self._name


class Lifetime(asyncio.BaseTransport):
    """What all transports share."""

    # Attributes are slow in a class whose base has slots, as asyncio's transports have,
    # unless all are slots.  Those of `Reading` and `Writing` are here too: only one of
    # two bases may have any.
    __slots__ = (
        *("__weakref__", "_loop", "_stream", "_fd", "_readiness", "_context"),
        *("_handle", "_out", "_port", "_pending", "_files", "_borrowing", "_failure"),
        *("_protocol", "_is_made", "_closing", "_is_lost", "_untold", "on_lost"),
        *("_is_buffered", "_paused", "_is_watched", "_has_ended", "_born", "_size"),
        *("_high", "_low", "_protocol_paused", "_eof"),
    )

    if TYPE_CHECKING:
        _extra: dict[str, Any]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: Out,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._stream = stream
        self._fd = stream.fileno()
        self._protocol: Any = protocol
        self._readiness = readiness_in(loop)
        self.on_lost: Callable[[], object] | None = None  # tells the server
        # The protocol's own: the caller that connects does not see what it sets.
        self._context = contextvars.copy_context()
        # Another object for the same connection, closed after connection_lost.
        self._handle: HasFileno | None = None
        self._is_made = False
        self._closing = False
        self._is_lost = False
        self._untold: list[Any] = []  # the protocol, until connection_lost is called

    @classmethod
    def over(
        cls,
        stream: Out,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
        handle: HasFileno | None = None,
    ) -> Self:
        """A transport over a stream, which it takes over; `begin` is next."""
        try:
            transport = cls(asyncio.get_running_loop(), stream, protocol, extra)
        except BaseException:
            stream.abort()
            raise
        transport._handle = handle
        return transport

    def _claim(self, fd: int) -> None:
        """Let the loop refuse to watch this fd for others, as asyncio's own does."""
        getattr(self._loop, "_transports", {})[fd] = self

    def __repr__(self) -> str:
        state = "closed" if self._is_lost else "closing" if self._closing else "open"
        return f"<{type(self).__name__} fd={self._fd} {state}>"

    # -- its beginning ------------------------------------------------------------

    def begin(self) -> None:
        """Call connection_made, once, and listen; if it raises, the connection ends."""
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

    def _start(self) -> None:
        """A hook: connection_made was called."""

    def _stop(self) -> None:
        """A hook: nothing is read any more.  May be called twice."""

    # -- its end ------------------------------------------------------------------

    def is_closing(self) -> bool:
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

    def _fail(self, error: BaseException, caller: str) -> None:
        """The protocol, or the transport itself, has raised: end the connection."""
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
            self._is_lost = True  # (what ends by the abort comes back here)
            self._readiness.forget(self._fd)
            self._stream.abort()
            if self._is_made and self._protocol is not None:
                self._untold = [self._protocol]
            for _ in range(2):  # the first may be interrupted before it has begun
                self._loop.call_soon(self._end, error, context=self._context)
        except BaseException:
            self._is_lost = False
            raise

    def _end(self, error: BaseException | None) -> None:
        """Call connection_lost.  Called by the loop, more than once."""
        try:
            if self._untold:
                self._untold.pop().connection_lost(error)
        finally:
            if not self._untold:
                self._let_go()

    def _let_go(self) -> None:
        """The protocol was told.  May be called twice."""
        self._protocol = None
        if self._handle is not None:
            self._handle.close()
        on_lost, self.on_lost = self.on_lost, None  # (which refers to us)
        if on_lost is not None:
            on_lost()

    # -- what can be asked --------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that is called; None once connection_lost was."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known: "sockname", "peername" and others."""
        return self._extra.get(name, default)
