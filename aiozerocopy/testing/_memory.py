"""MemoryStream: one end of two connected streams in memory.

A `_Line` is one direction.  It has a queue of messages and, as a pipe or a socket has
in the kernel, up to ``capacity`` bytes that are out and were not received.  Bytes move
when a message is submitted or cancelled, when bytes are received, and in `break_after`,
never in between, so each run of a test is the same.

A message borrows its buffers until it is done.  If it is cancelled before its first
byte is out it is dropped; if later, the rest goes out at once, beyond ``capacity``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import (
    IncompleteReceive,
    StreamBroken,
    StreamClosed,
    error_of,
)
from aiozerocopy._core.pins import Pins, content, fill, pin, pin_writable
from aiozerocopy._core.receiving import RECEIVE_SIZE
from aiozerocopy._core.sending import LINGER, QUEUE_LIMIT
from aiozerocopy._net.foreign_streams import MessageStream
from aiozerocopy.opening import _Ends
from aiozerocopy.streams import Ticket

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

CAPACITY = 64 << 10  # bytes, as a pipe has them

# Reasons why a line takes no more messages, or gives no more bytes.
_OVER = 0  # the sender has closed
_CLOSED = -errno.ESHUTDOWN  # on this side
_LEFT = -errno.EPIPE  # the receiver has closed
_RESET = -errno.ECONNRESET  # see `MemoryStream.break_after`


class _Message:
    """One message, which borrows its buffers until it is done."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._pins = Pins(map(pin, buffers))
        self.total: int = sum(map(len, self._pins))
        self.sent: int = 0
        self.done: bool = False
        self.status: int = 0

    @property
    def unsent(self) -> int:
        return self.total - self.sent

    def next(self, n: int) -> bytes:
        """Return its next n bytes."""
        piece, at = b"", self.sent
        for each in self._pins:
            skipped = min(at, len(each))
            at -= skipped
            piece += content(each + skipped, min(n - len(piece), len(each) - skipped))
        return piece

    def end(self, status: int = 0) -> None:
        """Give the buffers back to the caller."""
        self.done, self.status = True, status
        self._pins.release()


class _Line:
    """One direction."""

    other: _Line  # the opposite direction, which breaks with this one

    def __init__(self, capacity: int, pieces: int | None) -> None:
        self.queue: deque[_Message] = deque()
        self.out: bytearray = bytearray()
        self.changed: Change = Change()
        self.refused: int = 0  # why no more messages are taken
        self.ended: int | None = None  # why no bytes come after those that are out
        self.lasts: float = math.inf  # bytes until it breaks
        self._capacity = capacity
        self._pieces = pieces

    def submit(self, buffers: Sequence[Buffer]) -> _Message:
        message = _Message(buffers)
        if self.refused:
            message.end(self.refused)
        else:
            self.queue.append(message)
            self.move()
        return message

    def move(self, whole: _Message | None = None, taken: int = 0) -> None:
        """Let messages go out while there is room; a ``whole`` one needs none.

        ``taken`` bytes are about to leave.
        """
        while self.queue and self.lasts > 0:
            message = self.queue[0]
            room = max(self._capacity + taken - len(self.out), 0)
            if message is whole:
                room = message.unsent
            n = int(min(room, self.lasts, message.unsent))
            piece = message.next(n)
            # (One line without a call: a signal handler may raise at a line or a call.)
            self.out += piece; message.sent += n; self.lasts -= n  # noqa: E702  # fmt: skip
            if message.unsent:
                break
            message.end()
            self.queue.popleft()
        if self.lasts <= 0:
            for line in (self, self.other):
                line.end(_RESET, _RESET)
        self.changed.happen()

    def end(self, refused: int, ended: int) -> None:
        """Refuse messages, and end the stream for the receiver after what is out.

        A side's own close overrides any earlier reason.
        """
        if refused == _CLOSED or not self.refused:
            self.refused = refused
        if ended == _CLOSED or self.ended is None:
            self.ended = ended
        if ended == _CLOSED:
            self.out.clear()
        while self.queue:
            self.queue.popleft().end(self.refused)
        self.changed.happen()

    def has_room(self, message: _Message, limit: int) -> bool:
        """Return whether a put of this message may return."""
        if message.done or message is self.queue[0]:
            return True
        before = itertools.takewhile(lambda each: each is not message, self.queue)
        return sum(each.unsent for each in before) + message.total <= limit

    async def wait(self, message: _Message) -> None:
        """Return when the message is done."""
        while not message.done:
            await self.changed.next()

    def withdraw(self, message: _Message) -> None:
        """Cancel a message: drop it if it has not begun, complete it if it has."""
        if message.done:
            return
        if not message.sent:
            self.queue.remove(message)
            message.end()
        self.move(message)

    async def arrival(self) -> None:
        """Return once bytes are out."""
        while not self.out:
            if self.ended is not None:
                raise error_of(self.ended) if self.ended else anyio.EndOfStream
            await self.changed.next()

    def take(self, most: int) -> bytes:
        """Return the next 1 to ``most`` bytes that are out."""
        piece = bytes(self.out[: min(most, self._pieces or most)])
        n = len(piece)
        self.move(taken=n)
        # (one line, as in `move`)
        del self.out[:n]; return piece  # noqa: E702  # fmt: skip


class MemoryStream(MessageStream, ByteStream):
    """One end of `memory_pair`: both directions, with the promises of a `Stream`.

    It has these methods (`Stream` documents them): `send`, `put`, `send_many`, `flush`,
    `send_eof`, `receive`, `receive_into`, `receive_exactly`, `aclose` (without
    ``linger``) and `abort`.  It has no fd, and no method that needs one.  Every call is
    a checkpoint.
    """

    def __init__(self, out: _Line, into: _Line, queue_limit: int) -> None:
        self._out = out
        self._in = into
        self._queue_limit = queue_limit
        self._put: list[_Message] = []  # messages put, whose errors were not raised
        self._receiving = anyio.ResourceGuard("reading from")

    def break_after(self, nbytes: int) -> None:
        """Break the stream, both ways, once this end has sent ``nbytes`` more bytes.

        With 0 it breaks now.  The peer receives the bytes, then gets StreamBroken.
        """
        self._out.lasts = nbytes
        self._out.move()

    # -- sending ----------------------------------------------------------------------

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        await anyio.lowlevel.checkpoint()
        await self._send((item, *more))

    async def send_many(self, messages: Iterable[Buffer]) -> None:
        await anyio.lowlevel.checkpoint()
        await self._send(*((each,) for each in messages), ())

    async def flush(self) -> None:
        await self.send()

    async def _send(self, *messages: Sequence[Buffer]) -> None:
        submitted: list[_Message] = []
        try:
            submitted.extend(map(self._out.submit, messages))
            for each in submitted:
                await self._out.wait(each)
                if each.status:
                    await self._raise(each)
        finally:
            for each in submitted:
                self._out.withdraw(each)

    async def put(self, *buffers: Buffer) -> Ticket:
        await anyio.lowlevel.checkpoint()
        message = self._out.submit(buffers)
        try:
            while not self._out.has_room(message, self._queue_limit):
                await self._out.changed.next()
        except BaseException:
            self._out.withdraw(message)
            raise
        if message.status:
            await self._raise(message)
        self._put = [each for each in self._put if each.status or not each.done]
        self._put.append(message)
        ours: Any = (self, self._out, message)  # (they have what a Ticket calls)
        return Ticket(*ours)

    async def _raise(self, message: _Message) -> NoReturn:
        if message in self._put:
            self._put.remove(message)
        raise error_of(message.status, message.sent, message.total)

    async def send_eof(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self._out.ended is None:
            await self._send(())
            self._out.end(_CLOSED, _OVER)

    # -- receiving --------------------------------------------------------------------

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be a positive integer, not {max_bytes}")
        with self._receiving:
            await anyio.lowlevel.checkpoint()
            await self._in.arrival()
        return self._in.take(max_bytes)  # (the end of the block may be interrupted)

    async def receive_into(self, buffer: Buffer) -> int:
        return await self._fill(buffer, whole=False)

    async def receive_exactly(self, buffer: Buffer) -> None:
        await self._fill(buffer, whole=True)

    async def _fill(self, buffer: Buffer, *, whole: bool) -> int:
        got: list[bytes] = []
        try:
            with self._receiving, pin_writable(buffer) as memory:
                await anyio.lowlevel.checkpoint()
                n = 0
                while n < len(memory) and (whole or not n):
                    await self._in.arrival()
                    got.append(self._in.take(len(memory) - n))
                    fill(memory + n, memoryview(got[-1]))
                    n += len(got[-1])
                return n
        except anyio.EndOfStream:
            if got:
                raise IncompleteReceive(n, len(memory)) from None
            raise
        except BaseException:
            self._in.out[:0] = b"".join(got)  # for the next receive
            raise

    # -- the end ----------------------------------------------------------------------

    async def aclose(self) -> None:
        try:
            if self._out.queue:
                await self._send(())
            for each in self._put:
                if each.status and self._in.ended != _CLOSED:
                    await self._raise(each)
        finally:
            self.abort()
        await anyio.lowlevel.checkpoint()

    def abort(self) -> None:
        self._out.end(_CLOSED, _OVER)
        self._in.end(_LEFT, _CLOSED)

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.aclose()
            return
        with (  # (so as not to hide the block's exception)
            anyio.move_on_after(LINGER, shield=True),
            contextlib.suppress(StreamBroken, StreamClosed),
        ):
            await self.aclose()


class MemoryEnds(
    _Ends, NamedTuple("MemoryEnds", [("one", MemoryStream), ("other", MemoryStream)])
):
    """What `memory_pair` returns."""

    __slots__ = ()


def memory_pair(
    capacity: int = CAPACITY,
    *,
    pieces: int | None = None,
    queue_limit: int = QUEUE_LIMIT,
) -> MemoryEnds:
    """Return two streams in memory that are connected to each other, as `socketpair`.

    Each direction holds ``capacity`` bytes that were not received, then `send` waits.
    A receive gets at most ``pieces`` bytes.  ``queue_limit`` is that of
    `SendStream.put`.

    Raises:
        ValueError: ``capacity`` or ``pieces`` is below 1.
    """
    if capacity < 1 or (pieces is not None and pieces < 1):
        raise ValueError(
            f"capacity and pieces must be at least 1, not {capacity} and {pieces}"
        )
    there, back = _Line(capacity, pieces), _Line(capacity, pieces)
    there.other, back.other = back, there
    return MemoryEnds(
        MemoryStream(there, back, queue_limit), MemoryStream(back, there, queue_limit)
    )
