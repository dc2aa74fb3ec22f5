"""Whole messages over streams of other packages, such as anyio's TLS.

Such a stream may keep the memory that it is given, so it gets copies.  It may mix the
bytes of several tasks, so one message is sent after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import AsyncResource, ByteReceiveStream, ByteSendStream

from aiozerocopy._core.borrows import and_end, or_undo
from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.errors import IncompleteReceive, StreamBroken, error_of
from aiozerocopy._core.pins import bytes_of, unpin
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Buffer

PIECE = 256 << 10  # bytes that are sent or received at once
SMALL = 16 << 10  # bytes up to which buffers are joined
CUT = "an earlier send was cancelled or failed in the middle of a message"


class MessageStream(ByteSendStream):
    """Sends whole messages of any buffers, as our own streams do."""

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Send one message; when this returns, the buffers are yours again."""
        raise NotImplementedError


class WholeSender(MessageStream):
    """Copies messages into a stream of another kind, which stays the caller's."""

    def __init__(self, stream: ByteSendStream) -> None:
        self._stream = stream
        self._was_cut = False
        self._turns = Turns()

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Send one message; any number of tasks may.

        Raises:
            StreamBroken: an earlier send was cut off by a cancel or an error, or the
                stream broke: at least ``bytes_sent`` bytes were out.
            others: as the stream's own ``send``.
        """
        views: list[memoryview] = []

        async def send() -> None:
            views.extend(map(bytes_of, (item, *more)))
            await self._send(views)

        await and_end(send, partial(unpin, views))

    @in_turn
    async def _send(self, views: list[memoryview]) -> None:
        if self._was_cut:
            raise StreamBroken(CUT)
        out, total = 0, sum(view.nbytes for view in views)
        self._was_cut = True
        try:
            for piece in pieces_of(views):
                await self._stream.send(bytes(piece))
                out += len(piece)
            self._was_cut = False
        except StreamBroken as error:  # (which counts one piece's encrypted bytes)
            if error.errno is None:
                raise
            raise error_of(-error.errno, out, total, at_least=True) from error.__cause__

    async def aclose(self) -> None:
        await self._stream.aclose()


def whole_sender(stream: ByteSendStream) -> SendStream | MessageStream:
    """Return the stream itself if it sends whole messages, else a sender over it."""
    if isinstance(stream, (SendStream, MessageStream)):
        return stream
    expect_stream(stream, "send")
    return WholeSender(stream)


def expect_stream(stream: object, method: str) -> None:
    """Raises: TypeError: the stream lacks this method, or is not open yet."""
    if not hasattr(stream, method) or isinstance(stream, Coroutine):
        raise TypeError(
            f"a stream with an async {method}() is needed, such as one of aiozerocopy "
            f"or anyio, not {stream!r}"
        )


def pieces_of(views: list[memoryview]) -> Generator[Any]:
    """Yield the views' bytes: small views joined in a copy, large ones cut into pieces.

    The piece that was yielded last is appended to the views, to be released with them.
    """
    small = b""
    for view in tuple(views):
        if len(small) + view.nbytes <= SMALL:
            small += view
            continue
        if small:
            yield small
            small = b""
        for start in range(0, view.nbytes, PIECE):
            views.append(view[start : start + PIECE])
            yield views[-1]
            views.pop().release()
    if small:
        yield small


class ExactReceiver:
    """`receive_exactly` over a stream of another package; a cancel loses nothing."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._unread = b""

    async def receive_exactly(self, buffer: Any) -> None:
        """Fill a bytearray, or a memoryview of bytes."""
        filled, n = 0, len(buffer)

        async def fill() -> None:
            nonlocal filled
            while filled < n:
                if not self._unread:
                    most = min(n - filled, PIECE)
                    self._unread = await self._stream.receive(most)
                end = min(filled + len(self._unread), n)
                buffer[filled:end] = self._unread[: end - filled]
                # (one statement: no signal handler runs between the two stores)
                filled, self._unread = end, self._unread[end - filled :]

        async def keep(error: BaseException) -> None:
            nonlocal filled
            if not isinstance(error, anyio.EndOfStream):
                unread = bytes(buffer[:filled]) + self._unread
                filled, self._unread = 0, unread  # (one statement, as in `fill`)

        try:
            await or_undo(fill, keep)
        except anyio.EndOfStream:
            if filled:
                raise IncompleteReceive(filled, n) from None
            raise


def exact_receiver(stream: ByteReceiveStream) -> ReceiveStream | ExactReceiver:
    """Return the stream itself if it is one of ours, else a receiver over it."""
    if isinstance(stream, ReceiveStream):
        return stream
    expect_stream(stream, "receive")
    return ExactReceiver(stream)


async def drop_stream(stream: AsyncResource) -> None:
    """Close a stream at once, and ignore its errors."""
    with (
        anyio.CancelScope(shield=True),
        contextlib.suppress(
            OSError, anyio.BrokenResourceError, anyio.ClosedResourceError
        ),
    ):
        await anyio.aclose_forcefully(stream)
