"""One fd, one direction: what Python asks of a channel in C.

All messages have their place in C's queue from the moment that they are submitted, so
the order of the calls is the order of the bytes, and there is no line in Python.

A channel that is bound to a port has an operation ready: registered, and C knows its
token.  A send from the loop of that port needs no other, as long as it is over at once.
One that is not has used the token up, and the next is made ready.
"""

from __future__ import annotations

import array
import errno
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from aiozerocopy._core import fork_and_exit
from aiozerocopy._core.binding import BUSY, IN_PROGRESS, check, ffi, lib
from aiozerocopy._core.borrows import Operation, borrowed, sweep
from aiozerocopy._core.errors import error_of
from aiozerocopy._core.pins import nbytes, pin, pin_or_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy._core.borrows import Port

IN: int = lib.AZC_IN
OUT: int = lib.AZC_OUT
OWN: int = lib.AZC_OWN
UNTRUSTED: int = lib.AZC_UNTRUSTED
READS: int = lib.AZC_READS

CHANGED = "a message changed its size while it waited"

# Seconds that closing waits for a thread of ours.  It is back in microseconds, unless
# a peer holds it up in a system call: then it closes the fd when it is back.  It is
# worth more patience if it has somebody's memory.
_CLOSING, _CLOSING_IN_USE = 0.1, 1.0
_HELD_UP = 1.0  # seconds for such a thread, where nothing can be awaited


class Stats(Protocol):
    """The counters of a channel: azc_stats in csrc/azc.h."""

    bytes: int
    messages: int
    calls: int
    waits: int
    immediate: int
    rescued: int
    lent: int
    queued_bytes: int
    queued: int
    waiting: int
    error: int
    threaded: int
    lends: int


def lane_of(stats: Stats) -> str:
    """How a pool's bytes travel, once they have: see `SendStream.lane`."""
    return "vmsplice" if stats.lent and stats.lends else "copy"


class Channel:
    """One fd, one direction.  Its number in C is valid as long as this lives."""

    def __init__(self, fd: int, flags: int) -> None:
        """The fd is the channel's from here on.  If this raises, it is closed."""
        self._begin()
        try:
            check(lib.azc_open(fd, flags, self._number))
        except BaseException:
            if not self._number[0]:
                os.close(fd)
            raise
        self.id: int = self._number[0]

    def _begin(self) -> None:
        sweep()
        # C stores the number where it cannot be lost on its way to us.
        self._number = ffi.new("azc_id *")
        self._generation = fork_and_exit.generation
        self._closing: Operation | None = None
        self._port: Port | None = None
        self.ready: Operation | None = None

    def opposite(self) -> Channel:
        """The channel of the other direction over the same fd."""
        channel = Channel.__new__(Channel)
        channel._begin()
        check(lib.azc_open_opposite(self.id, channel._number))
        channel.id = channel._number[0]
        return channel

    @property
    def inherited(self) -> bool:
        """True in a forked child: the channel is the parent's, and dead here."""
        return self._generation != fork_and_exit.generation

    def fileno(self) -> int:
        """Its fd; -1 once it is closed."""
        return max(lib.azc_fd(self.id), -1)

    def stats(self) -> Stats:
        """The counters, as of now; all zero in a forked child."""
        stats = ffi.new("azc_stats *")
        lib.azc_get_stats(self.id, stats)
        return cast("Stats", stats)

    def refused(self, status: int, total: int) -> Exception:
        """The exception for a call that was not even queued."""
        return error_of(status, 0, total, broken=self.stats().error != 0)

    # -- submitting -------------------------------------------------------------------

    def set_limit(self, nbytes: int) -> None:
        """How many bytes may be queued before `submit` answers that it is busy."""
        check(lib.azc_set_limit(self.id, nbytes))

    def bind_port(self, port: Port, turn: int) -> None:
        """Have an operation ready, whose end that port will tell.

        Of the bound sends that are over at once each ``turn``th answers 1, for it is
        time to let others run.
        """
        self.ready = None  # until C knows it too
        self._port = port
        ready = Operation(port, [None])
        if lib.azc_bind_port(self.id, port.id, ready.token, turn) >= 0:
            self.ready = ready

    def submit(
        self,
        port: Port,
        operation: Operation,
        buffers: Iterable[Buffer],
        sizes: Sequence[int] = (),
        *,
        ask_room: bool = False,
    ) -> int:
        """Send buffers as one message, or as messages of those sizes.

        Returns what C does, for `refused` if it is an error; see `answered`.

        Raises:
            TypeError, BufferError: one of them is not a buffer that can be sent.
            ValueError: the buffers are of other sizes together.
        """
        views = operation.views
        views.extend(map(pin, buffers))
        total = sum(map(len, views))
        if sizes and sum(sizes) != total:
            raise ValueError(CHANGED)
        vec = ffi.new("struct iovec[]", [(view, len(view)) for view in views])
        ends = ffi.new("uint64_t[]", sizes) if sizes else ffi.NULL
        count, nsizes = len(views), len(sizes)
        result = lib.azc_sendv(
            self.id, port.id, operation.token, vec, count, ends, nsizes, ask_room
        )
        return self.answered(port, operation, total, result)

    def put_bound(self, port: Port, ready: Operation, buffer: Buffer) -> int:
        """Send a buffer as one message; returns as `submit` that asks for room."""
        data = buffer if type(buffer) is bytes else pin_or_copy(buffer)
        ready.views[0] = data
        result = lib.azc_put_bound(self.id, data, len(data))
        return self.answered(port, ready, len(data), result)

    def send_batch(
        self, port: Port, ready: Operation, block: bytes, messages: Sequence[Buffer]
    ) -> int:
        """Send messages that were joined into one block; returns as `submit`."""
        ready.views[0] = block
        result = lib.azc_send_batch(self.id, block, len(block), len(messages))
        if result == IN_PROGRESS:
            ends = array.array("Q", map(nbytes, messages))
            lib.azc_set_sizes(
                self.id, ready.token, ffi.from_buffer("uint64_t[]", ends), len(ends)
            )
        return self.answered(port, ready, len(block), result)

    def answered(
        self, port: Port, operation: Operation, total: int, result: int
    ) -> int:
        """Note what a call that sends has returned, and return it:

        0 and 1 mean that it is over, IN_PROGRESS that the operation will end later,
        and BUSY the same for one that must wait for room before.  Else it is refused.
        """
        if result == 0 and operation is self.ready:
            operation.views[0] = None  # and ready for the next
            return result
        operation.total = total
        if result not in (IN_PROGRESS, BUSY):
            operation.end(total if result >= 0 else 0, min(result, 0), 0)
            port.forget(operation)
        return result

    def send_now(self, port: Port, buffers: Iterable[Buffer]) -> Operation:
        """Send buffers as one message, for those who do not wait for its end.

        Raises: as `submit`; StreamBroken, StreamClosed: nothing is taken any more.
        """
        operation = Operation(port, [])
        try:
            result = self.submit(port, operation, buffers)
            if result < 0 and result != IN_PROGRESS:
                raise self.refused(result, operation.total)
        except BaseException:
            self.settle_now(port, operation, operation.total)
            raise
        return operation

    def receive(
        self, port: Port, operation: Operation, view: Any, start: int, need: int
    ) -> int:
        """Receive into a pin from ``start`` on, at least ``need`` bytes.

        Returns 0 if it is over, IN_PROGRESS, or an error for `refused`.
        """
        operation.total = n = len(view) - start
        result = lib.azc_recv(self.id, port.id, operation.token, view + start, n, need)
        if result != IN_PROGRESS:
            operation.end(max(result, 0), min(result, 0), 0)
            port.forget(operation)
        return min(result, 0)

    # -- giving up ----------------------------------------------------------------

    def settle(self, port: Port, operation: Operation, limit: int) -> bool:
        """Take the buffers back, however far the call that submitted them has come.

        May be called again, also if it was interrupted.  False: a system call has
        them, and an event will tell when it has not.
        """
        if self.ready is operation:
            self.ready = None
        if operation.done:
            return True
        event = ffi.new("azc_event *")
        answer = lib.azc_cancel(self.id, operation.token, limit, event)
        port.drain()
        if answer == lib.AZC_LATER:
            return operation.done
        if answer == lib.AZC_OVER or answer < 0:
            # It was over before, or never begun; or this is a forked child.  What a
            # receive has brought that was over in its own call, C still knows.
            known = event.token == operation.token
            operation.end(event.bytes if known else 0, 0, 0)
            port.forget(operation)
        else:
            operation.end(event.bytes, -errno.ECANCELED, answer)
        return True

    def settle_now(self, port: Port, operation: Operation, limit: int) -> None:
        """The same where nothing can be awaited.  A system call that has the buffers is
        waited for; if a peer holds it up, they stay borrowed."""
        if not self.settle(port, operation, limit):
            port.wait(operation, _HELD_UP)

    def close(self, port: Port) -> Operation:
        """Close the fd; what is queued fails.  The operation is done when it is closed.

        May be called again, also if it was interrupted.
        """
        if self._closing is None:
            self._closing = Operation(port, [])
        operation = self._closing
        if lib.azc_close(self.id, port.id, operation.token) == -errno.ENOMEM:
            self.abort()
        if self.fileno() < 0:
            operation.end(0, 0, 0)
            port.forget(operation)
        return operation

    def patience(self) -> float:
        """How many seconds the end of closing is worth waiting for."""
        return _CLOSING_IN_USE if self.stats().queued else _CLOSING

    def abort(self) -> None:
        """Close from anywhere, without a loop and without waiting."""
        lib.azc_close(self.id, 0, 0)

    def unbind_port(self) -> None:
        """It is closed.  Who keeps it must not keep the port, or nobody would look
        there, once its loop is gone, for what ends later."""
        ready, port = self.ready, self._port
        self.ready = self._port = None
        if ready is not None and port is not None and ready.views == [None]:
            # It is not in use.  (If another thread is about to, C will refuse.)
            borrowed.pop(ready.token, None)
            port.forget(ready)

    def shutdown(self) -> None:
        """End the sending side of a socket."""
        result = lib.azc_shutdown(self.id)
        if result < 0:
            raise self.refused(result, 0)

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is None or sys.is_finalizing():
            return
        lib.azc_free(number[0])
        self.unbind_port()
        sweep()
