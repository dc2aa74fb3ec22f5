"""The transport of a connected stream socket: write, writelines, write_eof, and flow
control; its base class in `reading` does the rest.

The path of one write
    `write` calls `send_at_once` in C, which sends at once if nothing is queued.  The
    rest stays in C's queue, in order, and the pump sends it, without the loop and
    without the GIL.  Only small buffers are copied, where that is cheaper than to
    borrow: a bytearray or its memoryview in `write`, any in `writelines`.

The states of a buffer, and who owns it
    out       the caller's again when `write` returns: most are
    queued    borrowed: its memory stays where it is, and must not be changed until it
              is out.  `_pending` has its operation
    over      its operation has ended, perhaps by an error: the caller's again

Flow control.  The protocol is paused as soon as more than the high-water mark is
queued, and also while a buffer is queued that its owner could change.  So
`StreamWriter.drain` returns when the buffer is out, and the program may use it again.
The protocol is resumed once both conditions are over.

If a signal's handler raises in a `write`, the buffers are taken back: of that message
either nothing goes out, or all of it, from a copy; if more than `RESCUE_LIMIT` bytes of
it are left, it is cut off and the connection breaks.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
from asyncio.trsock import TransportSocket
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import IN_PROGRESS
from aiozerocopy._core.borrows import Operation, or_undo_now
from aiozerocopy._core.channel import OUT, WRITE, Channel, OwnFd
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.groups import joined
from aiozerocopy._core.pins import nbytes, send_at_once
from aiozerocopy._core.sending import RESCUE_LIMIT
from aiozerocopy._core.waiter import current_loop
from aiozerocopy.opening import set_buffer
from aiozerocopy.transport.reading import (
    IN_PIECES,
    WAS_ABORTED,
    WAS_CLOSED,
    Out,
    Reading,
    aborted,
    os_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from aiozerocopy._core.relaying import Relay

AFTER_EOF = "nothing can be written after write_eof"
HIGH = 64 << 10  # bytes queued, above which the protocol is paused
_NO_BUDGET = (1 << 32) - 1  # sends before one yields to the loop: a write never does


class SocketTransport(Reading):
    """Both directions of a TCP or Unix connection: an `asyncio.Transport`.

    `create_connection` and similar functions make it.
    """

    __slots__ = (  # (as in `Reading`; a program may have attributes of its own here)
        *(
            "__dict__",
            "_out",
            "_port",
            "_pending",
            "_files",
            "_line",
            "_borrowing",
            "_failure",
            "_high",
        ),
        *("_low", "_protocol_paused", "_eof"),
    )
    _start_tls_compatible = True  # asyncio asks this before it puts TLS over us

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._out = self._stream._out
        self._port = self._stream._enter().port
        # The queued operations, first in, first out.
        self._pending: collections.deque[Operation] = collections.deque()
        self._files: set[Relay] = set()  # files that the kernel sends
        self._line: list[asyncio.Event] = []  # files that are sent in pieces, in turn
        # The last operation with memory that its owner can change.
        self._borrowing: Operation | None = None
        self._high, self._low = HIGH, HIGH // 4
        self._protocol_paused = False
        self._eof = False
        self._failure: Failure[OSError] | None = None  # why some data is not out

    # -- writing ------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send the bytes of any C-contiguous buffer, after all data written before.

        A buffer that is not out when this returns is borrowed: do not change it before
        `drained`, or ``drain`` of the `StreamWriter`, has returned.  (A bytearray of up
        to 4 KiB, or a memoryview of one, is copied instead, and so is yours at once.)

        After the connection was lost nothing is sent, and `drained` raises.

        Raises:
            TypeError, BufferError, ValueError: not a buffer that can be sent; nothing
                was sent.
            RuntimeError: after write_eof, or while `sendfile` reads a file in pieces.
        """
        out, mine = self._out, None
        if (ready := out.ready) is None:
            if not nbytes(data) or not self._is_writable():
                return
            out.bind_port(self._port, _NO_BUDGET)
            if (ready := out.ready) is None:  # we are a forked child
                return
        views = ready.views
        if not views or views[0] is not None:  # we are inside another call that uses it
            if nbytes(data):
                self._write_pieces([data])
            return
        try:
            try:
                found = send_at_once(out.id, ready.token, views, data, WRITE, 1)
                if found == 0:
                    return
                if found is not None:
                    mine = ready
                    is_copy = memoryview not in map(type, views)
                    is_fixed = is_copy or _is_fixed(data)
                    result = out.note_result(self._port, ready, *found)
                    self._queued(ready, result, is_fixed)
                    return
                ready = None
            except BaseException:
                self._undo(ready, mine)
                raise
        except BaseException:
            self._undo(ready, mine)
            raise
        if nbytes(data):
            self._write_pieces([data])

    def _undo(self, ready: Operation | None, mine: Operation | None) -> None:
        """Take a write's message back: by ``mine``, or ``ready`` if that has begun."""
        if mine is None and self._out.is_sending(ready):
            mine = ready
        if mine is not None:
            self._out.take_back_blocking(self._port, mine, RESCUE_LIMIT)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send several buffers as `write` does, by one system call if possible."""
        items = [data for data in list_of_data if nbytes(data)]
        if not items or not self._is_writable():
            return
        if len(items) == 1:
            self.write(items[0])
        elif block := joined(items):
            self.write(block)
        else:
            self._write_pieces(items)

    def _write_pieces(self, items: list[Buffer]) -> None:
        out, operation = self._out, Operation(self._port, [])

        def write() -> None:
            result = out.submit(self._port, operation, items)
            self._queued(operation, result, all(map(_is_fixed, items)))

        back = out.take_back_blocking
        or_undo_now(write, partial(back, self._port, operation, RESCUE_LIMIT))

    def _is_writable(self) -> bool:
        """Raises: RuntimeError after write_eof, and between the pieces of a file."""
        if self._eof:
            raise RuntimeError(AFTER_EOF)
        if self._line and not self._is_lost:
            raise RuntimeError(IN_PIECES)
        if self._is_lost and self._failure is None:
            self._failure = Failure(aborted(WAS_CLOSED))
        return not self._is_lost

    def _queued(self, operation: Operation, result: int, is_fixed: bool) -> None:
        """Continue after a call into C, which sent, queued or refused the message."""
        if result >= 0:
            return
        if result != IN_PROGRESS:
            error = self._out.refused(result, operation.total)
            if isinstance(error, (StreamBroken, StreamClosed)):
                self._break(error)
                return
            try:
                raise error  # nothing was sent, and the next message can be
            finally:
                del error  # (as in SendStream._fail)
        self._pending.append(operation)
        if not is_fixed:
            self._borrowing = operation
        operation.listen(self._advance)
        if not self._protocol_paused:
            self._pause_if_full()

    def write_eof(self) -> None:
        """Send EOF once all is out; go on reading."""
        if self._closing or self._eof:
            return
        self._eof = True
        self._out.unbind_port()  # so that `write` takes its slow path, and checks
        self._finish()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Read no more; send what was written, then call connection_lost(None)."""
        if self._is_lost:
            return
        self._closing = True
        self._stop()
        self._finish()

    async def drained(self) -> None:
        """Return when everything written is out, and the buffers are yours again.

        Raises:
            OSError: something is not out, and never will be; the buffers are yours.
                It is the error given to connection_lost, or ConnectionAbortedError.
        """
        if self._pending:
            last, loop = self._pending[-1], current_loop()
            while not last.done:
                await loop.park(last)
        if self._failure is not None:
            raise self._failure.again()

    # -- the end of queued operations ---------------------------------------------

    def _advance(self) -> None:
        """Continue after the end of a queued operation.  May be called twice."""
        try:
            pending = self._pending
            if pending and pending[0].done and pending[0].status < 0:
                self._read_before_the_end()
            self._forget_ended()
            if self._protocol_paused and not self._is_lost:
                self._context.copy().run(self._resume_if_empty)
            self._finish()
        except BaseException as error:
            self._fail(error, "the end of a write")
            raise

    def _read_before_the_end(self) -> None:
        """Read what the peer may have sent before it left."""
        if self._is_watched and not self._closing:
            self._context.copy().run(self._readable)

    def _end_reading(self) -> None:
        # After a reset has failed a write, a read sees EOF: ask C for that error first.
        if self._pending and not self._pending[0].done:
            self._port.drain()
        if self._files:
            self._find_failure()
        self._forget_ended()
        if not self._is_lost:
            super()._end_reading()

    def _find_failure(self) -> None:
        """Queue an empty message behind the files: if one fails, it fails too, and
        breaks the connection."""
        self._write_pieces([b""])

    def _forget_ended(self) -> None:
        pending = self._pending
        while pending and pending[0].done:
            operation = pending[0]
            if operation.status < 0 and not (
                operation.was_dropped or operation.was_rescued
            ):
                self._break(operation.failure())
            if pending and pending[0] is operation:  # (an abort would end all of them)
                pending.popleft()

    def _finish(self) -> None:
        self._forget_ended()  # an interrupted operation may not have called `_advance`
        if self._pending or self._files or self._line or self._is_lost:
            return
        if self._closing:
            self._lose(None)
        elif self._eof:
            try:
                self._out.shutdown()
            except (StreamBroken, StreamClosed) as error:
                self._break(error)

    def _break(self, error: Exception) -> None:
        """Lose the connection, as written data cannot be sent."""
        failure = os_error(error)
        if self._failure is None:
            self._failure = Failure(failure)
        self._lose(failure)

    def _lose(self, error: BaseException | None) -> None:
        if not self._is_lost and self._failure is None:
            if isinstance(error, OSError):
                self._failure = Failure(error)
            elif self._pending or self._files or self._line:
                self._failure = Failure(aborted(WAS_ABORTED))
        super()._lose(error)

    _force_close = _lose  # asyncio's TLS calls it by this name

    # -- flow control -------------------------------------------------------------

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are queued here; the kernel may have more."""
        return self._out.stats().queued_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        """Pause the protocol above ``high`` bytes, resume it at ``low``.

        Raises:
            ValueError: not 0 <= low <= high.
        """
        if high is None:
            high = HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(
                f"0 <= low <= high is required, not low={low!r} and high={high!r}"
            )
        self._high, self._low = high, low
        if self._pending and not self._protocol_paused and not self._is_lost:
            self._pause_if_full()

    def _is_borrowing(self) -> bool:
        """Is memory queued that its owner could change?"""
        return self._borrowing is not None and not self._borrowing.done

    def _pause_if_full(self) -> None:
        if self._is_borrowing() or self.get_write_buffer_size() > self._high:
            self._protocol_paused = True
            self._pause()

    def _pause(self) -> None:
        try:
            self._protocol.pause_writing()
        except Exception as error:
            self._report(error, "pause_writing")

    def _resume_if_empty(self) -> None:
        if not self._is_borrowing() and self.get_write_buffer_size() <= self._low:
            self._protocol_paused = False
            try:
                self._protocol.resume_writing()
            except Exception as error:
                self._report(error, "resume_writing")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give incoming data to another protocol.

        If writing is paused, the new protocol's pause_writing is called at once.
        """
        is_another = protocol is not self._protocol
        super().set_protocol(protocol)
        if is_another and self._protocol_paused and not self._is_lost:
            self._pause()

    # -- properties ---------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return "socket", "sockname" or "peername".

        The socket is another fd of the same connection, for setsockopt and similar
        calls, and is closed after connection_lost.
        """
        if name == "socket" and name not in self._extra and not self._is_lost:
            self._handle = sock = socket.socket(fileno=os.dup(self._fd))
            self._claim(sock.fileno())
            self._extra[name] = TransportSocket(sock)
        return super().get_extra_info(name, default)


def _is_fixed(data: object) -> bool:
    """Is this memory of ``bytes``, which nobody can change?"""
    if type(data) is memoryview:
        data = data.obj
    return type(data) is bytes


def transport_over(
    sock: socket.socket, protocol: asyncio.BaseProtocol, *, is_given: bool = False
) -> SocketTransport:
    """Return a transport that takes over a connected socket; call `begin` next.

    A socket given by the program stays usable until it is closed with the transport,
    which then has a second fd of the connection.
    """
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:  # (`stream_over` does the same)
        set_buffer(sock)
    elif sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the peer may have gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    extra = {"sockname": _name(sock.getsockname), "peername": _name(sock.getpeername)}
    if is_given:
        extra["socket"] = TransportSocket(sock)
    handle = sock if is_given else None
    loop = asyncio.get_running_loop()
    if is_given:
        stream = Out(OwnFd(duplicates([sock])).channel(OUT))
    else:
        stream = Out(Channel.of_socket(sock, OUT))
    try:
        return SocketTransport(loop, stream, protocol, extra, handle)
    except BaseException:
        stream.abort()
        raise


def _name(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except OSError:  # no longer connected
        return None
