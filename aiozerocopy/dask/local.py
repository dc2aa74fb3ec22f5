"""The stream of ``azc+unix://``: a Unix socket, and pipes for large messages.

On the socket
    a message              as in messages.py; its first number is below BY_PIPE
    PIPE, then a byte      with the byte comes the reading end of a pipe, for the large
                           messages that follow; or no fd, if none could be sent
    BY_PIPE + first        the message without its first number comes through the pipe;
                           next is one byte:
        WHOLE              the pipe had the whole message, as it was sent
        AGAIN              the pipe has failed; the bytes meant for it follow here

So a message goes one way or the other, and the socket determines the order.  Each
direction has a pipe of its own, made for the first large message, and ended with the
comm or when it fails; there is never a second one.  A peer gets a pipe only if it said
in Dask's handshake that it takes pipes.

Who waits for what.  A write waits until the peer has read all of the message from the
pipe, and its memory is lent until then.  After that it sends WHOLE.  A write that is
cancelled or fails before that ends the comm without a WHOLE, and the reader throws away
what it has read: only whole messages leave this file.

When one side dies, the kernel closes its ends of the socket and of both pipes, which
ends the other's reads and writes.  A peer may close the socket while a process that it
forked keeps the pipe open: that is noticed within LOOK seconds.

When there are no fds: a sender that cannot make a pipe sends by the socket, and tries
again with the next message.  If the receiver has no fd for the pipe, the kernel closes
the pipe's end; the sender sees that and sends the message AGAIN.

What a hostile peer can do.  It belongs to the same user, and Dask unpickles its data.
An fd is taken only where one is expected, and closed unless it is the reading end of a
pipe.  It cannot make this side read a message that was not announced, or take a second
pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import stat
import struct
import sys
import termios
from array import array
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.errors import StreamBroken
from aiozerocopy.dask.loan import Loan
from aiozerocopy.dask.messages import NUMBER, NotAMessage, receive_number, receive_rest
from aiozerocopy.opening import reader_over

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.dask.messages import Frame
    from aiozerocopy.streams import ReceiveStream, SendStream, UnixStream

# A socket's events after its peer has left.  (POLLRDHUP on Linux, POLLHUP on macOS.)
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)

# The exceptions of a pipe that has failed: here (no free fds, say), or at the sender.
_FAILED = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead)

LARGE = 2 << 20  # bytes: a smaller message gains nothing by the pipe
LOOK = 1.0  # seconds between two looks at the socket

BY_PIPE = 1 << 63
PIPE = (1 << 64) - 1
WHOLE, AGAIN = b"w", b"a"


class LocalStream:
    """A Unix socket's stream, which it owns, and the pipes.

    A method raises what the stream's own method does.
    """

    def __init__(self, stream: UnixStream) -> None:
        self._stream = stream
        self._turns = Turns()  # of the writes
        self._loan = Loan()
        self._lends: bool | None = None  # None before the first large message
        self._pipe: ReceiveStream | None = None
        self._was_offered = False
        self._came: list[int] = []  # received fds that are not in use yet

    # -- sending ------------------------------------------------------------------

    @in_turn
    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        await self._stream.send(item, *more)

    @in_turn
    async def send_message(
        self, buffers: Sequence[Frame], nbytes: int, peer_takes_pipes: bool
    ) -> None:
        """Send a message; when this returns its memory is yours again.

        If this is interrupted, abort the stream: until then memory may be lent.
        """
        if nbytes < LARGE or not peer_takes_pipes or not await self._can_lend():
            await self._stream.send(*buffers)
            return
        head = memoryview(buffers[0])
        rest = [head[NUMBER:], *buffers[1:]]
        (first,) = struct.unpack_from("=Q", head)
        await self._stream.send(struct.pack("=Q", BY_PIPE + first))
        try:
            with self._watch_peer(self._loan.writer, sys.maxsize):
                await self._loan.writer.send(*rest)
        except anyio.BrokenResourceError:
            self._stop_lending()
            await self._stream.send(AGAIN, *rest)
        else:
            await self._stream.send(WHOLE)
            if self._loan.is_refused:
                self._stop_lending()

    async def _can_lend(self) -> bool:
        """Is there a pipe?  The first large message makes it."""
        if self._lends is None:
            try:
                self._lends = self._loan.open()
            except OSError:  # no fds are free: try again with the next message
                return False
            if self._lends:
                await self._offer_pipe()
            else:
                self._stop_lending()
        return self._lends

    async def _offer_pipe(self) -> None:
        await self._stream.send(struct.pack("=Q", PIPE))
        try:
            await self._stream.send_fds(b"p", [self._loan.reader])
        except StreamBroken:
            raise
        except OSError:  # no fds are free, or too many are in transit
            await self._stream.send(b"p")
            self._stop_lending()
        else:
            self._loan.reader.abort()

    def _stop_lending(self) -> None:
        self._lends = False
        self._loan.abort()

    # -- receiving ----------------------------------------------------------------

    async def receive_exactly(self, buffer: Buffer) -> None:
        await self._stream.receive_exactly(buffer)

    async def receive_frames(self, most: int) -> list[memoryview]:
        """Return the frames of the next message; raise NotAMessage if it is not one."""
        first = await receive_number(self._stream)
        while first == PIPE:
            await self._take_pipe()
            first = await receive_number(self._stream)
        if first < BY_PIPE:
            return await receive_rest(self._stream, first, most)
        return await self._receive_lent(first - BY_PIPE, most)

    async def _receive_lent(self, first: int, most: int) -> list[memoryview]:
        frames = None
        if self._pipe is not None:
            with (
                contextlib.suppress(*_FAILED),
                self._watch_peer(self._pipe, 0),
            ):
                frames = await receive_rest(self._pipe, first, most)
            if frames is None:
                self._drop_pipe()
        word = bytearray(1)
        await self._stream.receive_exactly(word)
        if word == AGAIN:
            self._drop_pipe()
            return await receive_rest(self._stream, first, most)
        if word != WHOLE or frames is None:
            raise NotAMessage(f"{bytes(word)!r} after a message that came by a pipe")
        return frames

    async def _take_pipe(self) -> None:
        if self._was_offered:
            raise NotAMessage("a second pipe is announced")
        self._was_offered = True
        try:
            _, self._came = await self._stream.receive_fds(1, 1)
        except StreamBroken:
            raise
        except OSError:  # no fds are free here; or several came, and were closed
            await self._stream.receive_exactly(bytearray(1))
            return
        if self._came and not _is_read_end(self._came[0]):
            raise NotAMessage("a pipe is announced, and something else comes")
        if self._came:
            self._pipe = reader_over(self._came.pop())

    def _drop_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.abort()
            self._pipe = None

    # -- the end ------------------------------------------------------------------

    @contextlib.contextmanager
    def _watch_peer(
        self, pipe: SendStream | ReceiveStream, unread: int
    ) -> Iterator[None]:
        """Abort the pipe if the peer closes the socket, but not the pipe, in the block.

        The socket may have ``unread`` bytes.
        """
        loop = asyncio.get_running_loop()
        is_over = False

        def look() -> None:
            fd = self._stream.fileno()
            if is_over or fd < 0:
                return
            if has_hung_up(fd, unread):
                pipe.abort()
            else:
                loop.call_later(LOOK, look)

        loop.call_later(LOOK, look)
        try:
            yield
        finally:
            is_over = True

    @in_turn
    async def aclose(self) -> None:
        """Close after the message that is being sent."""
        self._end_pipes()
        await self._stream.aclose()

    def abort(self) -> None:
        """Close at once.  May be called from any thread."""
        self._stream.abort()
        self._end_pipes()

    def _end_pipes(self) -> None:
        self._loan.abort()
        self._drop_pipe()
        with contextlib.suppress(IndexError):
            os.close(self._came.pop())

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def _raw_socket(self) -> socket.socket:
        return self._stream._raw_socket

    def _has_unread(self) -> bool:
        return self._stream._has_unread()


def _is_read_end(fd: int) -> bool:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    return stat.S_ISFIFO(os.fstat(fd).st_mode) and flags & os.O_ACCMODE == os.O_RDONLY


def has_hung_up(fd: int, goodbye: int = 0) -> bool:
    """Has the peer left, with at most ``goodbye`` of its bytes unread?

    Dask keeps comms for later, and calls ``closed()`` before it uses one again.  So
    this asks the kernel, and receives nothing.
    """
    poll = select.poll()
    poll.register(fd, _GONE)
    if not poll.poll(0):
        return False
    unread = array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, unread)
    except OSError:  # another thread has closed it
        return True
    return unread[0] <= goodbye
