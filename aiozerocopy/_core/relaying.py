"""Relay: bytes from one stream to another, which do not pass through Python.

C moves them, in a thread of its own: csrc/relay.c has the states.  To both streams a
relay is one operation in the queue, so it keeps its place among other messages.

Who has the bytes
    unread      bytes that an earlier receive left over are Python's until the relay has
                begun, and C's from then on
    between     taken from the source and not yet out: C's.  When the relay is stopped
                they still go out; if the sink is broken, they go back to the source
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from aiozerocopy._core.binding import IN_PROGRESS, constants, ffi, lib
from aiozerocopy._core.borrows import or_undo
from aiozerocopy._core.channel import IN, OwnFd, own_file
from aiozerocopy._core.errors import StreamBroken, StreamClosed, error_of
from aiozerocopy._core.fds import HasFileno, duplicates
from aiozerocopy._core.files import number_of
from aiozerocopy._core.receiving import ReceiveStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.waiter import Waiter

ALL = (1 << 64) - 1

_LANES = {
    constants.AZC_BY_COPY: "copy",
    constants.AZC_BY_SENDFILE: "sendfile",
    constants.AZC_BY_SPLICE: "splice",
    constants.AZC_BY_PIPE: "splice through a pipe",
}


class Relay(Awaitable[int]):
    """Moves bytes from a source to a sink.

    Await it, once: it begins then, and the result is how many bytes were moved.  Its
    properties are valid meanwhile and afterwards, even if it failed.
    """

    __slots__ = ("_lane", "_number", "_run", "_sent", "_taken")

    def __init__(self, run: Callable[[Relay], Awaitable[int]]) -> None:
        self._run: Callable[[Relay], Awaitable[int]] | None = run
        self._sent = self._taken = 0  # by parts that have ended, or through Python
        self._lane = "copy"
        # C stores the number itself: an exception after the call cannot lose it.
        self._number = ffi.new("azc_id *")

    def __await__(self) -> Generator[Any, None, int]:
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError("a relay can be awaited only once")
        return run(self).__await__()

    @property
    def moved(self) -> int:
        """Bytes that have gone into the sink so far."""
        return self._sent + int(self._state().sent)

    @property
    def taken(self) -> int:
        """Bytes that have come from the source so far.

        After a relay was cancelled this may be more than ``moved``: the rest follows
        by itself, before any later message.
        """
        return self._taken + int(self._state().taken)

    @property
    def lane(self) -> str:
        """How the bytes travel.

        "sendfile" and "splice" move them from source to sink in one system call,
        "splice through a pipe" in two, from a socket; "copy" goes through memory.
        """
        self._state()
        return self._lane

    @property
    def _goes_on(self) -> bool:
        """True after a cancel if the message completes by itself."""
        return bool(self._number[0])

    def _state(self) -> Any:
        state = ffi.new("azc_relay_state *")
        if lib.azc_relay_ask(self._number[0], state) == 0:
            self._lane = _LANES[state.lane]
        return state

    def _settle(self) -> None:
        """Keep the counts of a relay that is over in C; may be called twice."""
        number, state = self._number[0], self._state()
        self._number[0] = 0
        self._sent += state.sent
        self._taken += state.taken
        lib.azc_relay_free(number)

    # (the default argument is still there at interpreter exit, when globals are gone)
    def __del__(self, free: Any = lib.azc_relay_free) -> None:
        number = getattr(self, "_number", None)
        if number is not None and number[0]:
            free(number[0])


class Sink(Protocol):
    """The part of a `SendStream` that a relay needs."""

    _out: Channel

    async def _begin(self) -> tuple[Waiter, Operation]: ...
    async def _submit_and_wait(
        self, waiter: Waiter, operation: Operation, submit: Callable[[], int]
    ) -> None: ...
    def _claim(self, call: Operation) -> None: ...
    async def _take_back(
        self, waiter: Waiter, operation: Operation, error: BaseException
    ) -> None: ...
    async def _explain(self, error: StreamBroken) -> StreamBroken: ...


# ---- between two of our streams -----------------------------------------------------


async def relay_streams(
    relay: Relay,
    source: ReceiveStream,
    sink: Sink,
    nbytes: int | None = None,
    *,
    once: bool = False,
    completes: bool = False,
    expected: int = 0,
) -> int:
    """Move bytes as one message; return how many.

    With ``once`` it ends when some bytes were moved and the source is empty.  With
    ``completes`` a cancel after the first byte lets it go on to the expected end.
    """
    limit = ALL if nbytes is None else nbytes
    how = {"nbytes": limit, "once": once, "completes": completes, "expected": expected}
    before = relay.moved
    waiter, operation = await sink._begin()
    if len(source._unread) >= limit:
        await _send_unread(relay, source, sink, waiter, operation, limit)
        return limit

    async def move() -> None:
        _open(relay, source, sink, waiter, operation, how)
        await waiter.wait(operation)
        if operation.status:
            raise await _why(sink, operation)
        _settle(relay, source, operation)

    async def stop(error: BaseException) -> None:
        await sink._take_back(waiter, operation, error)
        _settle(relay, source, operation)

    await or_undo(move, stop)
    return relay.moved - before


def _open(
    relay: Relay,
    source: ReceiveStream,
    sink: Sink,
    waiter: Waiter,
    operation: Operation,
    how: dict[str, int],
) -> None:
    sink._claim(operation)
    source._enter_alone()
    source._reception = operation
    unread, failed = ffi.from_buffer(source._unread), ffi.new("int *")
    ours = {"source": source._in.id, "sink": sink._out.id, "port": waiter.port.id}
    ours |= {"token": operation.token, "first": unread, "nfirst": len(unread)}
    request = ffi.new("azc_relay_request *", how | ours)
    result = lib.azc_relay_open(request, relay._number, failed)
    if result != IN_PROGRESS:
        _refuse(operation, result, failed[0], source)
        waiter.port.forget(operation)


def _refuse(
    operation: Operation, result: int, failed: int, source: ReceiveStream
) -> None:
    """Raise what prevented the relay; if a stream failed, end the operation instead."""
    if failed and result == -errno.EINVAL:
        raise ValueError(f"{source!r} cannot be relayed onto itself")
    if not failed and result != -errno.ECHILD:
        no_thread = result == -errno.EAGAIN
        why = "no thread can start" if no_thread else os.strerror(-result)
        raise OSError(-result, f"the relay cannot begin: {why}")
    is_source = failed == constants.AZC_IN
    outcome = constants.AZC_REFUSED if is_source else constants.AZC_DROPPED
    operation.end(0, result, outcome)


def _settle(relay: Relay, source: ReceiveStream, operation: Operation) -> None:
    """Note that the relay is over, or goes on by itself; may be called twice."""
    if relay._state().began:
        source._unread = b""
    if not operation.was_rescued:
        relay._settle()
    if source._reception is operation:
        source._reception = None


async def _why(sink: Sink, operation: Operation) -> Exception:
    """Return the exception of a failed relay, which names the side that failed."""
    if operation.outcome != constants.AZC_REFUSED:
        error = operation.failure()
        if isinstance(error, StreamBroken):
            error.args = (f"the sink broke: {error}{_count(operation)}",)
            return await sink._explain(error)
        return error
    error = error_of(operation.status, operation.sent)
    if isinstance(error, StreamClosed):
        return StreamClosed(f"the source was closed{_count(operation)}")
    error.args = (f"the source broke: {error}{_count(operation)}",)
    return error


def _count(operation: Operation) -> str:
    return f", after {operation.sent:,} bytes were relayed"


async def _send_unread(
    relay: Relay,
    source: ReceiveStream,
    sink: Sink,
    waiter: Waiter,
    operation: Operation,
    n: int,
) -> None:
    """Send unread bytes, which are all that is wanted, or leave them unread."""

    def submit() -> int:
        source._enter_alone()
        source._reception = operation
        return sink._out.submit(waiter.port, operation, (source._unread[:n],))

    try:
        await sink._submit_and_wait(waiter, operation, submit)
    finally:
        if source._reception is operation:
            out = n if operation.was_rescued else operation.sent
            source._unread, source._reception = source._unread[out:], None
            relay._taken += out
            relay._sent += out


# ---- files --------------------------------------------------------------------------


AnyFile = Union[str, bytes, "os.PathLike[Any]", int, HasFileno]


def check_part(offset: int | None, nbytes: int | None) -> None:
    """Raises: ValueError: one of the two is negative."""
    for name, number in (("offset", offset), ("nbytes", nbytes)):
        if number is not None and number < 0:
            raise ValueError(f"{name} must be at least 0, not {number}")


def open_source(file: AnyFile, offset: int | None = None) -> ReceiveStream:
    """Return a file as a source, from ``offset``; the caller's fd stays open.

    Without an offset an open file is read from its position, which moves along.

    Raises:
        OSError: it cannot be opened or is a directory.
        TypeError, ValueError: as `number_of`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK
    if isinstance(file, (str, bytes, os.PathLike)):
        ours = own_file(file, flags)
    else:
        number = number_of(file, reading=True)
        access = fcntl.fcntl(number, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
        if access == os.O_WRONLY:
            raise io.UnsupportedOperation(f"fd {number} is open for writing only")
        # (with an offset, open it again, so that the caller's position does not move)
        if offset is None:
            ours = OwnFd(duplicates([number]))
        else:
            ours = own_file(f"/dev/fd/{number}", flags)
    with contextlib.closing(ours):
        if stat.S_ISDIR(os.fstat(ours.fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if offset is not None:
            os.lseek(ours.fd, offset, os.SEEK_SET)
        return ReceiveStream(ours.channel(IN))


async def close_source(source: ReceiveStream) -> None:
    """Close it; an open file's position is then after the bytes moved, not read."""
    if unread := len(source._unread) + source._in.stats().leftover:
        with contextlib.suppress(OSError):  # not a regular file
            os.lseek(source.fileno(), -unread, os.SEEK_CUR)
    await source.aclose()


async def relay_file(
    relay: Relay, sink: Sink, file: AnyFile, offset: int | None, nbytes: int | None
) -> int:
    """Move a file's bytes as one message, which completes once it has begun."""
    stands = _position(file) if offset is None else None
    try:
        source = open_source(file, stands.at if stands else offset)
    except OSError:
        if stands is None:
            raise
        source = open_source(file)  # (it cannot be opened again: share its position)
    expected: int | None = None
    moved = 0
    try:
        expected = _left(source.fileno(), nbytes)
        moved = await relay_streams(
            *(relay, source, sink, nbytes),
            completes=expected is not None,
            expected=expected or 0,
        )
    except BaseException:
        moved = expected or 0 if relay._goes_on else relay.moved
        source.abort()  # (if the message goes on, C closes the file at its end)
        raise
    finally:
        if stands is not None:
            with contextlib.suppress(OSError):
                os.lseek(stands.fd, stands.at + moved, os.SEEK_SET)
    await close_source(source)
    return moved


class _Position(NamedTuple):
    """The position of the caller's fd, which only `relay_file` moves.

    (The source has a position of its own, so the caller may move the fd's meanwhile;
    unless the file could not be opened again.)
    """

    fd: int
    at: int


def _position(file: AnyFile) -> _Position | None:
    """Return the position of an open regular file; None for others."""
    if isinstance(file, (str, bytes, os.PathLike)):
        return None
    fd = number_of(file, reading=True)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    return _Position(fd, os.lseek(fd, 0, os.SEEK_CUR))


def _left(fd: int, nbytes: int | None) -> int | None:
    """Return how many bytes of a regular file to send; None for others."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return None
    left = max(0, status.st_size - os.lseek(fd, 0, os.SEEK_CUR))
    return left if nbytes is None else min(left, nbytes)
