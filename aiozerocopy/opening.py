"""Streams over pipes, files, terminals and sockets: those that exist, and new pairs.

Who owns the fd.  `open_writer`, `open_reader` and `wrap_socket` take over the fd or
object that they are given: the stream has an fd of its own (a dup, 3 or higher, closed
on exec), and the caller's is closed, so that the peer sees the end when the stream
closes.  The numbers 0, 1 and 2 are pointed at /dev/null instead of closed: otherwise
the next file that the program opens would become, say, its standard output.  If the
call fails, the caller's fd is as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import inspect
import io
import os
import socket
import stat
from collections.abc import Coroutine
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar, cast

from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.channel import (
    IN,
    LENDS_ALL,
    OUT,
    OWN,
    READS,
    UNTRUSTED,
    Channel,
    OwnFd,
    own_file,
    own_pipe,
)
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.files import fd_of, settle
from aiozerocopy._core.lifetime import Ready
from aiozerocopy._core.pipe_size import PIPE_SIZE, capacity_of, enlarge_pipe
from aiozerocopy._core.sending import QUEUE_LIMIT, RESCUE_LIMIT, Concurrent
from aiozerocopy.streams import (
    BorrowedSocket,
    ReceiveStream,
    SendStream,
    Stream,
    UnixStream,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Self

# Python has a name for this only if its own build machine had it.
_O_PATH = getattr(os, "O_PATH", 0)

_PEERS = {"unknown": 0, "reads": READS, "untrusted": UNTRUSTED}


class HasFileno(Protocol):
    """A file object, a socket, ``Popen.stdin``: an object that owns an fd."""

    def fileno(self) -> int: ...
    def close(self) -> object: ...


T = TypeVar("T", bound="AbstractAsyncContextManager[Any, Any]")


class Opening(Coroutine[Any, Any, T]):
    """Something that takes time to open: ``await`` it, or open it by ``async with``.

    It is a coroutine, too, for `asyncio.create_task` and a task group's ``start_soon``.
    """

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: T

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        suspended = inspect.CORO_SUSPENDED
        if value is not None and inspect.getcoroutinestate(self._opening) != suspended:
            raise TypeError(self._hint())
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opening.throw(*error)

    def close(self) -> None:
        self._opening.close()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)

    if not TYPE_CHECKING:  # (so that a type checker complains)

        def __getattr__(self, name: str) -> NoReturn:
            if name == "_opening":  # (a copy that has no attributes yet)
                raise AttributeError(name)
            raise AttributeError(f"no {name!r}: {self._hint()}")

    def _hint(self) -> str:
        name = getattr(self._opening, "__qualname__", "it").partition(".")[0]
        return f"not open yet: use the result of `await {name}(...)`"

    def __repr__(self) -> str:
        return f"<Opening: {self._hint()}>"


# ---- taking over fds that exist ------------------------------------------------


def open_writer(
    fd_or_file: int | HasFileno,
    peer: str = "unknown",
    *,
    rescue_limit: int = RESCUE_LIMIT,
    queue_limit: int = QUEUE_LIMIT,
    concurrent: Concurrent = "queue",
) -> SendStream:
    """Send to a pipe, FIFO, file, terminal, device or connected stream socket.

    Takes over the fd, or the file object, which is flushed first: the stream has a
    duplicate, and yours is closed.  (0, 1 and 2 then lead to /dev/null.)  The blocking
    mode stays as it is.

    ``peer`` is what you know of the process at the other end: "unknown", "reads" (it
    only ever uses read or recv, so that a pool's pages may be lent to it through a pipe
    or a UNIX socket, which becomes non-blocking), or "untrusted" (it may try to hold us
    up inside a pipe's system call, so none is made in the event loop's thread).

    With ``concurrent="queue"`` a task waits in line while another one is sending; with
    "raise" it gets BusyResourceError.

    Raises:
        TypeError: neither an fd nor an object that has one, or a limit is no int.
        ValueError: a negative fd or limit, a closed file, an unknown ``peer`` or
            ``concurrent``.
        io.UnsupportedOperation: open for reading only, or not a stream of bytes.
        OSError: the fd is not open, or is a directory or an unconnected socket.
    """
    flags = OUT | flags_for(peer)
    with _take_over(fd_or_file, os.O_WRONLY) as ours:
        if flags & READS:
            flags += _make_own(ours.fd)
        return SendStream(
            ours.channel(flags),
            rescue_limit=rescue_limit,
            queue_limit=queue_limit,
            concurrent=concurrent,
        )


def _make_own(fd: int) -> int:
    """Open a pipe once more, non-blocking for us alone, under the same number.

    We write to a pipe with RWF_NOWAIT, which a pipe no longer supports once pages were
    lent to it.  (A socket does not need this.)

    Returns what to add to the flags; if this fails nothing is lent.
    """
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return OWN
    if PORTABLE or not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return -READS
    try:
        own = own_file(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return -READS
    with contextlib.closing(own):
        os.dup2(own.fd, fd, inheritable=False)
    return OWN


def open_reader(fd_or_file: int | HasFileno, peer: str = "unknown") -> ReceiveStream:
    """Receive from a pipe, FIFO, file, terminal, device or connected stream socket.

    Ownership, ``peer`` and errors are as for `open_writer`.  Bytes that a buffered file
    object has read ahead from a pipe are lost: give an object that was not read from.

    Raises: also TypeError for a text file, which always reads ahead.
    """
    flags = IN | flags_for(peer)
    with _take_over(fd_or_file, os.O_RDONLY) as ours:
        return ReceiveStream(ours.channel(flags))


def wrap_socket(
    sock: int | HasFileno,
    *,
    peer: str = "unknown",
    rescue_limit: int = RESCUE_LIMIT,
    queue_limit: int = QUEUE_LIMIT,
    concurrent: Concurrent = "queue",
) -> Stream:
    """Return both directions of a connected stream socket, blocking or not.

    For a UNIX socket this is a `UnixStream`.

    Takes over the socket; ownership, ``peer``, ``concurrent`` and the errors are as for
    `open_writer`.  If the peer is on this machine, and nobody has set the size of the
    send buffer, this sets the fastest size.
    """
    flags_for(peer)
    with _take_over(sock, None) as ours:
        if not stat.S_ISSOCK(os.fstat(ours.fd).st_mode):
            raise OSError(errno.ENOTSOCK, f"{sock!r} is not a socket")
        with _borrowed_socket(ours.fd) as our_socket:
            kind, flags = _kind_of(our_socket), set_up(our_socket, peer)
        return kind(
            ours.channel(flags),
            rescue_limit=rescue_limit,
            queue_limit=queue_limit,
            concurrent=concurrent,
        )


def flags_for(peer: str) -> int:
    """Return the channel's flags for this kind of peer."""
    if peer not in _PEERS:
        choices = ", ".join(map(repr, _PEERS))
        raise ValueError(f"peer must be one of {choices}, not {peer!r}")
    return _PEERS[peer]


_FOR_PATHS = {
    os.O_WRONLY: "open_writer(open({!r}, 'wb'))",
    os.O_RDONLY: "open_reader(open({!r}, 'rb'))",
    None: "connect_unix({!r})",
}


@contextlib.contextmanager
def _take_over(source: int | HasFileno, access: int | None) -> Iterator[OwnFd]:
    """Give the block a dup of the caller's fd; after success close the caller's."""
    if isinstance(source, (str, bytes, os.PathLike)):
        what = _FOR_PATHS[access].format(os.fspath(source))
        raise TypeError(f"a path must be opened first: write {what}")
    number = _number_of(source)
    check_fd(number, access)
    settle(source, number, reading=access == os.O_RDONLY)
    with contextlib.closing(OwnFd(duplicates([number]))) as ours:
        yield ours
    _close_source(source, number)


def _number_of(source: int | HasFileno) -> int:
    if isinstance(source, int) and not isinstance(source, bool):
        return fd_of(source)
    methods = (getattr(source, name, None) for name in ("fileno", "close"))
    if isinstance(source, (bool, type)) or not all(map(callable, methods)):
        raise TypeError(
            "an fd, or an object with fileno() and close() such as an open file or a "
            f"socket, is required, not {type(source).__name__!r}"
        )
    return fd_of(source)


def check_fd(number: int, access: int | None, *, is_connected: bool = True) -> None:
    """Refuse an fd that is not a stream of bytes in this direction (None: in both).

    A socket must also be connected, unless ``is_connected`` is False.
    """
    try:
        mode = os.fstat(number).st_mode
        status = fcntl.fcntl(number, fcntl.F_GETFL)
    except (OSError, OverflowError):
        raise OSError(errno.EBADF, f"fd {number} is not open") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, f"fd {number} is a directory")
    if status & _O_PATH:
        raise io.UnsupportedOperation(f"fd {number} was opened with O_PATH")
    if stat.S_ISSOCK(mode):
        _check_socket(number, is_connected)
    elif not any(kind(mode) for kind in _STREAMS):
        raise io.UnsupportedOperation(
            f"fd {number} is neither a pipe, a file, a device nor a stream socket"
        )
    opened_for = status & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    if access is not None and opened_for not in (access, os.O_RDWR):
        purpose = "writing" if access == os.O_RDONLY else "reading"
        raise io.UnsupportedOperation(f"fd {number} is open for {purpose} only")


_STREAMS = (stat.S_ISFIFO, stat.S_ISREG, stat.S_ISCHR, stat.S_ISBLK)


def _check_socket(number: int, is_connected: bool) -> None:
    with _borrowed_socket(number) as sock:
        if sock.type != socket.SOCK_STREAM:
            raise io.UnsupportedOperation(
                f"fd {number} is a {sock.type.name} socket: a stream socket is required"
            )
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise io.UnsupportedOperation(
                f"fd {number} is a listening socket: pass one that accept() has "
                "returned, or use serve_tcp"
            )
        try:
            if is_connected:
                sock.getpeername()
        except OSError as error:
            text = f"the socket with fd {number} is not connected"
            raise OSError(error.errno, text) from None


@contextlib.contextmanager
def _borrowed_socket(number: int) -> Iterator[socket.socket]:
    """Give the block another owner's fd as a socket object, to get or set options."""
    blocking = os.get_blocking(number)
    sock = BorrowedSocket(fileno=number)
    try:
        if os.get_blocking(number) != blocking:  # socket.setdefaulttimeout was used
            os.set_blocking(number, blocking)
        yield sock
    finally:
        sock.detach()


def _close_source(source: int | HasFileno, number: int) -> None:
    """Close the caller's fd or object."""
    if number <= 2:
        with contextlib.closing(own_file(os.devnull, os.O_RDWR)) as null:
            os.dup2(null.fd, number)
    elif isinstance(source, int):
        os.close(number)
    else:
        # It was flushed, so an error loses nothing, and the fd is closed even then.
        with contextlib.suppress(OSError):
            source.close()


# ---- pairs of our own ----------------------------------------------------------


class _Ends(Ready):
    """Two streams, ready: unpack them, ``await`` them, or use them in ``async with``.

    The block closes both at its end: the second one first, so that it sends what it has
    accepted while the first can still receive.
    """

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: Any) -> None:
        first, second = cast("tuple[ReceiveStream, SendStream]", self)
        try:
            await second.__aexit__(*error)
        finally:
            await first.__aexit__(*error)


class PipeEnds(
    _Ends, NamedTuple("PipeEnds", [("reader", ReceiveStream), ("writer", SendStream)])
):
    """What `pipe` returns."""

    __slots__ = ()


class SocketEnds(
    _Ends, NamedTuple("SocketEnds", [("one", UnixStream), ("other", UnixStream)])
):
    """What `socketpair` returns."""

    __slots__ = ()


def pipe(size: int = PIPE_SIZE) -> PipeEnds:
    """Return the ends of a new pipe, ``(reader, writer)``.

    They are ready; ``async with pipe() as (reader, writer)`` closes them, the writer
    first.  The pipe holds ``size`` bytes, or what the system allows: see
    `pipe_capacity`.

    Raises:
        OSError: there are no fds or no memory.
        ValueError, TypeError: ``size`` is no number of bytes.
    """
    if isinstance(size, bool) or not isinstance(size, Integral):
        raise TypeError(f"size must be a whole number of bytes, not {size!r}")
    if size < 1:
        raise ValueError(f"size must be at least 1 byte, not {size}")
    return _pipe(int(size))


def lending_pipe(size: int) -> PipeEnds:
    """Return a pipe whose writer lends any memory, and copies none if cancelled.

    If a send ends early, lent pages may still be in the pipe.  Then empty the pipe
    before anybody stores into the memory, and let no reader use what it received.

    Raises: as `pipe`.
    """
    return _pipe(size, READS | LENDS_ALL, rescue_limit=0)


def _pipe(size: int, flags: int = 0, rescue_limit: int = RESCUE_LIMIT) -> PipeEnds:
    reader, writer = own_pipe()
    enlarge_pipe(writer.fd, size)
    source, sink = reader.end(IN), writer.end(OUT | flags)
    return PipeEnds(ReceiveStream(source), SendStream(sink, rescue_limit=rescue_limit))


def reader_over(fd: int) -> ReceiveStream:
    """Return a stream over the read end of a pipe, and take over the fd."""
    return ReceiveStream(Channel(fd, IN))


def pipe_capacity(stream: SendStream | ReceiveStream) -> int | None:
    """Return how many bytes a stream's pipe holds; None: not a pipe, or not known."""
    return capacity_of(stream.fileno())


def socketpair(*, peer: str = "unknown") -> SocketEnds:
    """Return two UNIX streams that are connected to each other.

    They are ready; ``async with socketpair() as (one, other)`` closes them, the other
    first.  ``peer`` is as for `open_writer`, for both.

    Raises:
        OSError: there are no fds or no memory.
    """
    flags_for(peer)
    one, other = socket.socketpair()
    with one, other:
        ends = (stream_over(end, peer=peer) for end in (one, other))
        return SocketEnds(*cast("Iterator[UnixStream]", ends))


# The kernel doubles this to twice the usual size: the reader stays busy while one
# message ends and the next begins.
# Measured with messages of 1 MiB: 1.35 times as fast as a C loop with the usual size.
UNIX_BUFFER = 212_992


# Bytes in the buffer of a TCP sender whose peer is on the same machine (the kernel
# doubles it).  By default the kernel lets megabytes pile up, which go through main
# memory twice.  Measured, CPU time of both ends beside the default: 0.6 times as much
# for messages of 6 MB, 0.8 times for 1 MiB, and as much for small ones.
NEAR_BUFFER = 256 << 10

_SO_BUF_LOCK = 72  # since Linux 5.14: which sizes the program has set
_SNDBUF_IS_SET = 1


# Lent pages count in the buffer until they are read, but need none of its memory.
# Measured with frames of 6 MB, beside a C loop that copies: a third of its CPU time, at
# its rate, or at 1.6 to 1.9 times its rate while the frame is in the processor's cache.
# With the usual size: 0.8 times its rate.  The kernel doubles this number, and gives
# less if net.core.wmem_max is less.
LENDING_BUFFER = 2 << 20


def set_up(sock: socket.socket, peer: str) -> int:
    """Set the size of the send buffer; return the channel's flags.

    To a peer that reads, a UNIX socket lends messages that its buffer cannot hold, if
    the buffer is large, or if the program has set its size.
    """
    flags = OUT | flags_for(peer)
    if not flags & READS or sock.family != socket.AF_UNIX:
        set_buffer(sock)
        return flags
    is_ours = set_buffer(sock, LENDING_BUFFER)
    size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return flags & ~READS if is_ours and size < LENDING_BUFFER else flags | OWN


def set_buffer(sock: socket.socket, unix_buffer: int = UNIX_BUFFER) -> bool:
    """Set the size of the send buffer; return False if the program has set it before.

    Over a network this does nothing: the kernel adapts the size, until it is set.
    """
    with contextlib.suppress(OSError):  # the peer may have gone, or the kernel is old
        if sock.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK) & _SNDBUF_IS_SET:
            return False
        if sock.family == socket.AF_UNIX:
            size = unix_buffer
        elif sock.getpeername()[0] == sock.getsockname()[0]:
            size = NEAR_BUFFER
        else:
            return True
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    return True


def stream_over(
    sock: socket.socket, concurrent: Concurrent = "queue", peer: str = "unknown"
) -> Stream:
    """Return a stream over our own connected socket, and take over the socket.

    For a UNIX socket this is a `UnixStream`.
    """
    sock.setblocking(False)  # a relay's splice would wait otherwise
    kind, flags = _kind_of(sock), set_up(sock, peer)
    return kind(Channel.of_socket(sock, flags), concurrent=concurrent)


def _kind_of(sock: socket.socket) -> type[Stream]:
    return UnixStream if sock.family == socket.AF_UNIX else Stream
