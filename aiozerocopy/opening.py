"""Streams over pipes, files, terminals and sockets: those that exist, and new pairs.

Who owns the fd.  `open_writer`, `open_reader` and `wrap_socket` take over what they are
given: the stream has an fd of its own (a dup, 3 or higher, closed on exec), and the
caller's fd or object is closed, so that the end of the stream is seen when the stream
closes.  The numbers 0, 1 and 2 are not closed, since the next file to be opened would
become the standard output: there is /dev/null behind them afterwards.  When anything
is refused or fails, the caller's fd is as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import socket
import stat
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

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
    own_pipe,
)
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.lifetime import Ready
from aiozerocopy._core.pipe_size import PIPE_SIZE, capacity_of, enlarge_pipe
from aiozerocopy._core.sending import QUEUE_LIMIT, RESCUE_LIMIT, Concurrent
from aiozerocopy.streams import ReceiveStream, SendStream, Stream, UnixStream

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Self

# Python has no name for it where its own build machine had none.
_O_PATH = getattr(os, "O_PATH", 0)

_PEERS = {"unknown": 0, "reads": READS, "untrusted": UNTRUSTED}


class HasFileno(Protocol):
    """A file object, a socket, ``Popen.stdin``: an fd and somebody who closes it."""

    def fileno(self) -> int: ...
    def close(self) -> object: ...


T = TypeVar("T", bound="AbstractAsyncContextManager[Any, Any]")


class Opening(Coroutine[Any, Any, T]):
    """Something that takes time to open: ``await`` it, or open it by ``async with``.

    It is a coroutine too, for `asyncio.create_task` and a task group's ``start_soon``.
    """

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: T

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
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


# ---- taking over what exists ---------------------------------------------------


def open_writer(
    fd_or_file: int | HasFileno,
    peer: str = "unknown",
    *,
    rescue_limit: int = RESCUE_LIMIT,
    queue_limit: int = QUEUE_LIMIT,
    concurrent: Concurrent = "queue",
) -> SendStream:
    """Send to a pipe, FIFO, file, terminal, device or connected stream socket.

    Takes over the fd, or the file object, which is flushed first; see the module for
    what becomes of it.  Whether it is blocking is left as it is.

    ``peer`` is what is known of the process at the other end: "unknown", "reads" (it
    only ever uses read or recv, so that a pool's pages may be lent to it through a pipe
    or a Unix socket, which becomes non-blocking), or "untrusted" (it may try to hold us
    up inside a pipe's system call, so none is made in the event loop's thread).

    ``concurrent`` says what becomes of a task that sends while another one does: it
    waits in line, or with "raise" gets BusyResourceError.

    Raises:
        TypeError: neither an fd nor an object that stands for one.
        ValueError: a negative fd, a closed file, an unknown ``peer`` or ``concurrent``.
        io.UnsupportedOperation: open for reading only, or not a stream of bytes.
        OSError: the fd is not open, a directory, a socket that is not connected.
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

    Once pages were lent to a pipe, it no longer knows how to take a single write
    without waiting, which is how it is written to otherwise.  (A socket needs none.)

    Returns what that adds to the flags.  Where it cannot be done nothing is lent.
    """
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return OWN
    if PORTABLE or not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return -READS
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return -READS
    os.dup2(own, fd, inheritable=False)
    os.close(own)
    return OWN


def open_reader(fd_or_file: int | HasFileno, peer: str = "unknown") -> ReceiveStream:
    """Receive from a pipe, FIFO, file, terminal, device or connected stream socket.

    Ownership, ``peer`` and errors are as for `open_writer`.  What a buffered file
    object has read ahead of a pipe is lost: give one that nobody has read from.

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
    """Both directions of a connected stream socket, in whatever blocking mode.

    Of a Unix socket it is a `UnixStream`.

    Takes over the socket; that, ``peer``, ``concurrent`` and the errors are as for
    `open_writer`.  If the peer is on this machine, and nobody has set the size of the
    send buffer, that becomes what is fastest there.
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
    """The channel's flags for what is known of the peer."""
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
    """A dup of the caller's fd; if the block ends well, the caller's is closed."""
    if isinstance(source, (str, bytes, os.PathLike)):
        what = _FOR_PATHS[access].format(os.fspath(source))
        raise TypeError(f"a path must be opened first: write {what}")
    number = _number_of(source)
    _check(number, access)
    _sync_position(source, number, reading=access == os.O_RDONLY)
    with contextlib.closing(OwnFd(duplicates([number]))) as ours:
        yield ours
    _close_source(source, number)


def _number_of(source: int | HasFileno) -> int:
    if isinstance(source, int) and not isinstance(source, bool):
        if source < 0:
            raise ValueError(f"{source} is not a file descriptor")
        return source
    methods = (getattr(source, name, None) for name in ("fileno", "close"))
    if isinstance(source, (bool, type)) or not all(map(callable, methods)):
        raise TypeError(
            "an fd, or an object with fileno() and close() such as an open file or a "
            f"socket, is required, not {type(source).__name__!r}"
        )
    try:
        number = source.fileno()
    except io.UnsupportedOperation:
        raise io.UnsupportedOperation(f"{source!r} has no fd") from None
    if number < 0:
        raise ValueError(f"{source!r} is closed")
    _check_transparent(source)
    return number


def _check_transparent(source: object) -> None:
    """Refuse an object that changes the bytes on their way to its fd."""
    inner = getattr(source, "buffer", source)
    if isinstance(inner, io.BufferedIOBase) and not isinstance(
        inner, (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
    ):
        raise TypeError(
            f"{type(inner).__name__} changes the bytes on their way: pass the file "
            "below it"
        )
    if hasattr(source, "getpeercert"):
        raise TypeError("a TLS socket's bytes must go through TLS, not past it")


def _check(number: int, access: int | None) -> None:
    """Refuse what cannot be a stream of bytes in this direction (None: in both)."""
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
        _check_socket(number)
    elif not any(kind(mode) for kind in _STREAMS):
        raise io.UnsupportedOperation(
            f"fd {number} is neither a pipe, a file, a device nor a stream socket"
        )
    opened_for = status & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    if access is not None and opened_for not in (access, os.O_RDWR):
        purpose = "writing" if access == os.O_RDONLY else "reading"
        raise io.UnsupportedOperation(f"fd {number} is open for {purpose} only")


_STREAMS = (stat.S_ISFIFO, stat.S_ISREG, stat.S_ISCHR, stat.S_ISBLK)


def _check_socket(number: int) -> None:
    with _borrowed_socket(number) as sock:
        if sock.type != socket.SOCK_STREAM:
            raise io.UnsupportedOperation(
                f"fd {number} is a {sock.type.name} socket: a stream socket is required"
            )
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise io.UnsupportedOperation(
                f"fd {number} is a listening socket: give one that it accepted"
            )
        try:
            sock.getpeername()
        except OSError as error:
            text = f"the socket with fd {number} is not connected"
            raise OSError(error.errno, text) from None


@contextlib.contextmanager
def _borrowed_socket(number: int) -> Iterator[socket.socket]:
    """Somebody's fd as a socket object, only to ask it something."""
    blocking = os.get_blocking(number)
    sock = socket.socket(fileno=number)
    try:
        if os.get_blocking(number) != blocking:  # socket.setdefaulttimeout was used
            os.set_blocking(number, blocking)
        yield sock
    finally:
        sock.detach()


def _sync_position(source: int | HasFileno, number: int, *, reading: bool) -> None:
    """Flush what the object has not written; set the fd to where its reader is."""
    if reading and isinstance(source, io.TextIOBase):
        raise TypeError("a text file reads ahead: open it in binary mode")
    above: list[Any] = [source]
    if number in (1, 2):  # what was printed goes out before ours, through any layer
        above.insert(0, (sys.stdout, sys.stderr)[number - 1])
    for layer in above:
        if hasattr(layer, "flush") and not getattr(layer, "closed", False):
            layer.flush()
    if reading and isinstance(source, io.BufferedReader) and source.seekable():
        os.lseek(number, source.tell(), os.SEEK_SET)


def _close_source(source: int | HasFileno, number: int) -> None:
    """Close what the caller gave."""
    if number <= 2:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)
        os.close(null)
    elif isinstance(source, int):
        os.close(number)
    else:
        # It was flushed, so an error loses nothing; and the fd is closed all the same.
        with contextlib.suppress(OSError):
            source.close()


# ---- pairs of our own ----------------------------------------------------------


class _Ends(Ready):
    """Two streams, ready: unpack them, ``await`` them, or use them in ``async with``.

    The block closes both at its end, the second one first, which sends what it accepted
    while the first can still receive.
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
    """A pipe, ``(reader, writer)``: what is sent to the second the first receives.

    They are ready; ``async with pipe() as (reader, writer)`` closes them, the writer
    first.  It holds ``size`` bytes, or what the system allows: see `pipe_capacity`.

    Raises:
        OSError: there are no fds or no memory.
    """
    return _pipe(size)


def lending_pipe(size: int) -> PipeEnds:
    """A pipe whose writer lends any memory, and copies none of it if cancelled.

    If a send ends early, what it has lent may still be in the pipe.  Then empty that,
    before anybody stores into the memory, and let no reader believe what it got.

    Raises: as `pipe`.
    """
    return _pipe(size, READS | LENDS_ALL, rescue_limit=0)


def _pipe(size: int, flags: int = 0, rescue_limit: int = RESCUE_LIMIT) -> PipeEnds:
    reader, writer = own_pipe()
    enlarge_pipe(writer.fd, size)
    source, sink = reader.end(IN), writer.end(OUT | flags)
    return PipeEnds(ReceiveStream(source), SendStream(sink, rescue_limit=rescue_limit))


def reader_over(fd: int) -> ReceiveStream:
    """A stream over the read end of a pipe, which it takes over."""
    return ReceiveStream(Channel(fd, IN))


def pipe_capacity(stream: SendStream | ReceiveStream) -> int | None:
    """How many bytes a stream's pipe holds; None if that is not a pipe or not known."""
    return capacity_of(stream.fileno())


def socketpair(*, peer: str = "unknown") -> SocketEnds:
    """Two streams that are connected to each other.

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


# Twice the usual: the reader stays busy while one message ends and the next begins.
# Measured with messages of 1 MiB: 1.35 times as fast as a C loop with the usual size.
UNIX_BUFFER = 212_992


# Bytes in the buffer of a TCP sender whose peer is on the same machine (the kernel
# doubles it).  The kernel itself would let megabytes pile up, which go through main
# memory twice.  Measured, CPU time of both ends: 0.6 of that for messages of 6 MB, 0.8
# for 1 MiB; small ones take as long as before.
NEAR_BUFFER = 256 << 10

_SO_BUF_LOCK = 72  # since Linux 5.14: which sizes somebody has set
_SNDBUF_IS_SET = 1


# What is lent lies in the buffer until it is read, but is no memory of the kernel's.
# Measured with frames of 6 MB, beside a C loop that copies: a third of its CPU time at
# the same rate, or at 1.6 to 1.9 times the rate while the frame is in the processor's
# cache; with the usual size 0.8 times.  The kernel doubles it, and gives less where
# net.core.wmem_max is less.
LENDING_BUFFER = 2 << 20


def set_up(sock: socket.socket, peer: str) -> int:
    """Set the size of the send buffer; return the channel's flags.

    To a peer that reads, a Unix socket lends messages that are longer than its buffer,
    if that is large, or of the size that somebody has set.
    """
    flags = OUT | flags_for(peer)
    if not flags & READS or sock.family != socket.AF_UNIX:
        set_buffer(sock)
        return flags
    is_ours = set_buffer(sock, LENDING_BUFFER)
    size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return flags & ~READS if is_ours and size < LENDING_BUFFER else flags | OWN


def set_buffer(sock: socket.socket, unix_buffer: int = UNIX_BUFFER) -> bool:
    """Set the size of the send buffer, unless somebody has; false if that is so.

    Over a network the kernel must find it by itself, and would not if it were set.
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
    """A stream over a connected socket of ours, which it takes over.

    Of a Unix socket it is a `UnixStream`.
    """
    sock.setblocking(False)  # a relay's splice would wait otherwise
    kind, flags = _kind_of(sock), set_up(sock, peer)
    return kind(Channel(sock.detach(), flags), concurrent=concurrent)


def _kind_of(sock: socket.socket) -> type[Stream]:
    return UnixStream if sock.family == socket.AF_UNIX else Stream
