"""One fd, one direction: what Python asks of a channel in C.

All messages have their place in C's queue from the moment that they are submitted, so
the order of the calls is the order of the bytes, and there is no line in Python.

A channel that is bound to a port keeps an operation ready: it is registered, and C
knows its token.  Sends that finish at once all use it, one after the other.  Any other
send uses the token up, and `note_result` makes the next operation ready.
A signal handler or a finalizer may send in the middle of that.  So the operation's only
view is the memory of the message that has it, or None; C checks and stores it in one
step.  C also refuses a token that is used up.  A message that cannot have the ready
operation gets one of its own.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import BUSY, IN_PROGRESS, check, constants, ffi, lib
from aiozerocopy._core.borrows import Operation, borrowed, sweep
from aiozerocopy._core.errors import error_of
from aiozerocopy._core.fds import close_fds, duplicates, no_fds
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.memory import sweep as sweep_leases
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozerocopy._core.binding import Counters
    from aiozerocopy._core.borrows import Port
    from aiozerocopy._core.colour import ThenRgb
    from aiozerocopy._core.leases import AnyBuffer

IN: int = constants.AZC_IN
OUT: int = constants.AZC_OUT
OWN: int = constants.AZC_OWN
UNTRUSTED: int = constants.AZC_UNTRUSTED
READS: int = constants.AZC_READS
LENDS_ALL: int = constants.AZC_LENDS_ALL

SEND: int = constants.AZC_SEND
PUT: int = constants.AZC_PUT
WRITE: int = constants.AZC_WRITE

CHANGED = "a message changed its size while it waited"

# Seconds to wait for one of our threads inside a system call.  It returns within
# microseconds, unless a peer holds it up.  Closing waits longer if messages are queued,
# since the call may be using their memory.  A slower thread closes the fd by itself.
_CLOSING, _CLOSING_IN_USE = 0.1, 1.0
_HELD_UP = 1.0


def lane_of(stats: Counters) -> str:
    """Return how a pool's bytes travel: see `SendStream.lane`."""
    return "vmsplice" if stats.lent and stats.lends else "copy"


class OwnFd:
    """An fd that is closed with this object, unless a channel has taken it.

    C stores the number and hands it on: no exception in between can lose it.
    """

    def __init__(self, fds: Any) -> None:
        self._fds = fds

    @property
    def fd(self) -> int:
        """The number; -1 once it is closed, or a channel has it."""
        return self._fds.fds[0] if self._fds.count else -1

    def fileno(self) -> int:
        return self.fd

    def channel(self, flags: int) -> Channel:
        channel = Channel.__new__(Channel)
        channel._begin()
        check(lib.azc_open_from(self._fds, flags, channel._number))
        channel.id = channel._number[0]
        return channel

    def end(self, flags: int) -> Channel:
        """Make a channel as `channel` does, for an end of our own pipe."""
        os.set_blocking(self.fd, False)
        return self.channel(flags | OWN)

    def close(self) -> None:
        close_fds(self._fds)


def own_file(path: str | bytes | os.PathLike[Any], flags: int) -> OwnFd:
    """Open a file.  Its number is 3 or higher, as that of a duplicate.

    Raises: as `os.open`.
    """
    fds = no_fds()
    fds.fds[0], fds.count = -1, 1
    # (C stores the number: no exception in between can lose it.)
    opened = map(os.open, [path], [flags], [0o666])
    for _ in map(fds.fds.__setitem__, [0], opened):
        pass
    ours = OwnFd(fds)
    return ours if ours.fd > 2 else OwnFd(duplicates([ours.fd]))


def own_pipe() -> tuple[OwnFd, OwnFd]:
    """Return the ends of a new pipe: first the one to read from."""
    reader, writer = OwnFd(no_fds()), OwnFd(no_fds())
    check(lib.azc_pipe(reader._fds, writer._fds))
    return reader, writer


class Channel(OfOneProcess):
    """One fd, one direction.  Its number in C is valid as long as this lives."""

    def __init__(self, fd: int, flags: int) -> None:
        """Take over the fd; if this raises, the fd is closed."""
        try:
            self._begin()
            check(lib.azc_open(fd, flags, self._number))
        except BaseException:
            number = getattr(self, "_number", None)
            if number is None or not number[0]:
                os.close(fd)
            raise
        self.id: int = self._number[0]

    @classmethod
    def of_socket(cls, sock: socket.socket, flags: int) -> Channel:
        """Take over the fd; if this raises, it is closed, or still the socket's.

        The numbers 0 to 2 (stdin, stdout and stderr) are replaced by a higher one.
        """
        if sock.fileno() in (0, 1, 2):
            with sock:
                return OwnFd(duplicates([sock.fileno()])).channel(flags)
        channel = cls.__new__(cls)
        channel._begin()
        fd = sock.fileno()
        # (C passes the fd on: no exception in between can lose it.)
        detached = map(socket.SocketType.detach, [sock])
        (status,) = map(lib.azc_open, detached, [flags], [channel._number])
        if status < 0:
            os.close(fd)
        check(status)
        channel.id = channel._number[0]
        return channel

    def _begin(self) -> None:
        sweep()
        sweep_leases()
        OfOneProcess.__init__(self)
        self.ready: Operation | None = None
        self._closing: Operation | None = None
        self._port: Port | None = None
        self._budget = 0
        # C stores the number itself: an exception after the call cannot lose it.
        self._number = ffi.new("azc_id *")

    def opposite(self) -> Channel:
        """Return a channel of the other direction over the same fd."""
        channel = Channel.__new__(Channel)
        channel._begin()
        check(lib.azc_open_opposite(self.id, channel._number))
        channel.id = channel._number[0]
        return channel

    def fileno(self) -> int:
        """Return the fd; -1 once it is closed."""
        return max(lib.azc_fd(self.id), -1)

    def stats(self) -> Counters:
        """Return the counters as of now; all are zero in a forked child."""
        stats: Counters = ffi.new("azc_stats *")
        lib.azc_get_stats(self.id, stats)
        return stats

    def refused(self, status: int, total: int, taken: int | None = None) -> Exception:
        """Return the exception for a message that was not queued, or for a receive,
        of which ``taken`` bytes had come before."""
        done = taken or 0
        return error_of(
            *(status, done, done + total),
            broken=self.stats().error != 0,
            received=taken is not None,
        )

    # -- submitting -------------------------------------------------------------------

    def set_limit(self, nbytes: int) -> None:
        """Set how many bytes may be queued before `submit` returns BUSY."""
        check(lib.azc_set_limit(self.id, nbytes))

    def bind_port(self, port: Port, budget: int) -> None:
        """Make an operation ready; the port will report its end.

        After ``budget`` sends that finished at once, one returns 1: yield to the loop.
        """
        self.ready = None  # until C knows the next one
        self._port, self._budget = port, budget
        ready = Operation(port, [None])
        if lib.azc_bind_port(self.id, port.id, ready.token, budget) != 0:
            self._port = None
        if self.ready is None:
            self.ready = ready
            if self._port is not None:
                return
            self.ready = None  # the channel is closed, perhaps since just now
        else:  # a call in between has bound another operation, before us or after
            lib.azc_bind_port(self.id, port.id, self.ready.token, budget)
        ready.end()
        port.forget(ready)

    def submit(
        self,
        port: Port,
        operation: Operation,
        buffers: Iterable[AnyBuffer],
        sizes: Sequence[int] = (),
        *,
        ask_room: bool = False,
    ) -> int:
        """Send buffers as one message, or as messages of these sizes.

        Returns the result of C: see `note_result`, and `refused` for an error.

        Raises:
            TypeError, BufferError: one of them is not a buffer that can be sent.
            ValueError: the sizes do not add up to the buffers' size.
        """
        views = operation.views
        views.extend(map(pin, buffers))
        total = sum(map(len, views))
        if sizes and sum(sizes) != total:
            raise ValueError(CHANGED)
        operation.total = total  # before C has it: see `take_back`
        vec = ffi.new("struct iovec[]", [(view, len(view)) for view in views])
        ends = ffi.new("uint64_t[]", sizes) if sizes else ffi.NULL
        count, nsizes = len(views), len(sizes)
        result = lib.azc_sendv(
            self.id, port.id, operation.token, vec, count, ends, nsizes, ask_room
        )
        return self.note_result(port, operation, result, total)

    def free(self) -> Operation | None:
        """Return the operation that is ready, unless a message has it."""
        ready = self.ready
        return ready if ready is not None and ready.views == [None] else None

    def is_sending(self, ready: Operation | None) -> bool:
        """Return whether a message has this operation, and its result was not noted."""
        if ready is None or ready is not self.ready:
            return False
        return not ready.views or ready.views[0] is not None  # (none: it has ended)

    def note_batch(
        self, port: Port, operation: Operation, sizes: Iterable[int], *found: int
    ) -> int:
        """Do as `note_result`, for messages that were joined into one block."""
        if found[0] == IN_PROGRESS:
            ends = array.array("Q", sizes)
            lib.azc_set_sizes(
                *(self.id, operation.token),
                *(ffi.from_buffer("uint64_t[]", ends), len(ends)),
            )
        return self.note_result(port, operation, *found)

    def note_result(
        self, port: Port, operation: Operation, result: int, total: int
    ) -> int:
        """Note the result of a call that sends, and return it.

        0 and 1 mean that the message is out, IN_PROGRESS that it will end later, and
        BUSY that it must wait for room first.  Any other result is an error.
        """
        if operation is self.ready:  # its token is used up
            self.bind_port(port, self._budget)
        operation.total = total
        if result not in (IN_PROGRESS, BUSY):
            operation.end(total if result >= 0 else 0, min(result, 0))
            port.forget(operation)
        return result

    def send_now(self, port: Port, buffers: Iterable[AnyBuffer]) -> Operation:
        """Send buffers as one message, without waiting for its end.

        Raises: as `submit`; StreamBroken, StreamClosed: the channel takes no more.
        """
        operation = Operation(port, [])
        try:
            result = self.submit(port, operation, buffers)
            if result < 0 and result != IN_PROGRESS:
                raise self.refused(result, operation.total)
        except BaseException:
            self.take_back_blocking(port, operation, operation.total)
            raise
        return operation

    def send_fds(
        self, port: Port, operation: Operation, message: AnyBuffer, fds: Any
    ) -> int:
        """Send a message that carries fds; returns as `submit`.

        Raises: as `submit`.
        """
        operation.views.append(fds)
        operation.views.append(data := pin(message))
        operation.total = n = len(data)
        if not n:
            raise ValueError("message must not be empty")
        result = lib.azc_send_fds(self.id, port.id, operation.token, data, n, fds)
        return self.note_result(port, operation, result, n)

    def receive(
        self,
        port: Port,
        operation: Operation,
        view: Any,
        start: int,
        need: int,
        fds: Any = None,
    ) -> int:
        """Receive into a pin from ``start`` on, at least ``need`` bytes.

        With ``fds`` (then the need is one byte) fds that come are stored there.
        Returns 0 if all is received, IN_PROGRESS, or an error for `refused`.
        """
        operation.total = n = len(view) - start
        token, at = operation.token, view + start
        fds = ffi.NULL if fds is None else fds
        result = lib.azc_recv(self.id, port.id, token, at, n, need, fds)
        return self._note_received(port, operation, result)

    def receive_then(
        self, port: Port, operation: Operation, view: Any, start: int, then: ThenRgb
    ) -> int:
        """Receive all of a pin from ``start`` on, and then call ``then`` in C.

        Returns as `receive`.
        """
        operation.total = n = len(view) - start
        result = lib.azc_recv_then(
            *(self.id, port.id, operation.token, view + start, n),
            *(then.function, then.argument),
        )
        return self._note_received(port, operation, result)

    def _note_received(self, port: Port, operation: Operation, result: int) -> int:
        if result != IN_PROGRESS:
            operation.end(max(result, 0), min(result, 0))
            port.forget(operation)
        return min(result, 0)

    # -- giving up ----------------------------------------------------------------

    def take_back(self, port: Port, operation: Operation, limit: int = 0) -> bool:
        """Take the buffers of an operation back, whether it was submitted or not.

        Up to ``limit`` bytes of the rest of a message that has begun are copied.

        Returns False if a system call is using them; an event will report its end.  May
        be called again, also after an interruption.
        """
        if self.ready is operation:
            self.ready = None
        if operation.done:
            return True
        event = ffi.new("azc_event *")
        answer = lib.azc_cancel(self.id, operation.token, limit, event)
        port.drain()
        if answer == constants.AZC_OVER:
            # It is over, or was never submitted, or this is a forked child.  If it is a
            # receive that ended in its own call, C still knows how many bytes came.
            known = event.token == operation.token
            operation.end(event.sent if known else 0)
            port.forget(operation)
        return operation.done

    def take_back_blocking(
        self, port: Port, operation: Operation, limit: int = 0
    ) -> None:
        """Take the buffers back without awaiting: block until no system call uses them.

        If a peer holds the call up for too long, they stay borrowed.
        """
        if not self.take_back(port, operation, limit):
            port.wait(operation, _HELD_UP)

    def close(self, port: Port) -> Operation:
        """Close the fd; queued operations fail.  The result is done when it is closed.

        May be called again, also if it was interrupted.
        """
        if self._closing is None:
            self._closing = Operation(port, [])
        operation = self._closing
        result = lib.azc_close(self.id, port.id, operation.token)
        if result == -errno.ENOMEM:
            self.abort()
        if result != IN_PROGRESS and self.fileno() < 0:
            operation.end()
            port.forget(operation)
        return operation

    def patience(self) -> float:
        """Return how many seconds to wait for the end of closing."""
        return _CLOSING_IN_USE if self.stats().queued else _CLOSING

    def abort(self) -> None:
        """Close from anywhere, without a loop and without waiting."""
        lib.azc_close(self.id, 0, 0)

    def unbind_port(self) -> None:
        """Let go of the port of a closed channel.

        A port that is kept alive would not be swept once its loop is gone, and events
        that come later would never be read.
        """
        port, self._port = self._port, None  # (first: see `bind_port`)
        ready, self.ready = self.ready, None
        if ready is not None and ready.views == [None]:
            # No send is using the operation.  (C refuses a send that begins now.)
            borrowed.pop(ready.token, None)
            if port is not None:  # (two threads may come here)
                port.forget(ready)

    def shutdown(self) -> None:
        """End the sending side of a socket."""
        result = lib.azc_shutdown(self.id)
        if result:
            raise self.refused(result, 0)

    # (a default argument is still there at interpreter exit, when globals are gone)
    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        number = getattr(self, "_number", None)
        if number is None or is_exiting():
            return
        lib.azc_free(number[0])
        self.unbind_port()
        sweep()
