"""Whole messages over streams that are not ours, such as TLS.

Such a stream may keep the memory that it is given, so it gets copies.  It may mix what
several tasks send, so one message is sent after the other.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import AsyncResource, ByteReceiveStream, ByteSendStream

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken, error_of
from aiozerocopy._core.pins import bytes_of
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Buffer

PIECE = 256 << 10  # bytes that are sent or received at once
SMALL = 16 << 10  # bytes up to which buffers are joined
CUT = "a cancelled send has cut a message off"


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
        self._sending = anyio.Lock(fast_acquire=True)

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Send one message; any number of tasks may.

        Raises:
            StreamBroken: a cancelled send has cut a message off, this one or another.
                Or the stream broke: at least ``bytes_sent`` bytes were out.
            others: as the stream's own ``send``.
        """
        views, out = [bytes_of(each) for each in (item, *more)], 0
        total = sum(view.nbytes for view in views)
        pieces = pieces_of(views)
        try:
            async with self._sending:
                if self._was_cut:
                    raise StreamBroken(CUT)
                self._was_cut = True
                for piece in pieces:
                    await self._stream.send(bytes(piece))
                    out += len(piece)
                self._was_cut = False
        except StreamBroken as error:  # its counts are of one piece as TLS has sent it
            if error.errno is None:
                raise
            raise error_of(-error.errno, out, total, at_least=True) from error.__cause__
        finally:
            pieces.close()
            for view in views:
                view.release()

    async def aclose(self) -> None:
        await self._stream.aclose()


def whole_sender(stream: ByteSendStream) -> SendStream | MessageStream:
    """The stream itself if it sends whole messages, else a sender over it."""
    if isinstance(stream, (SendStream, MessageStream)):
        return stream
    return WholeSender(stream)


def pieces_of(views: list[memoryview]) -> Generator[Any]:
    """Yield their bytes: small ones joined in a copy, a large one cut into pieces.

    A piece is released before the next one, or when this is closed.
    """
    small = b""
    for view in views:
        if len(small) + view.nbytes <= SMALL:
            small += view
            continue
        if small:
            yield small
            small = b""
        for start in range(0, view.nbytes, PIECE):
            with view[start : start + PIECE] as piece:
                yield piece
    if small:
        yield small


class ExactReceiver:
    """`receive_exactly` over a stream that is not ours; a cancel loses nothing."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._unread = b""

    async def receive_exactly(self, memory: bytearray | memoryview) -> None:
        # (released at the end: an error's traceback would keep the memory)
        with memoryview(memory) as view:
            await self._fill(view)

    async def _fill(self, view: memoryview) -> None:
        filled = min(len(self._unread), len(view))
        view[:filled] = self._unread[:filled]
        self._unread = self._unread[filled:]
        try:
            while filled < len(view):
                data = await self._stream.receive(min(len(view) - filled, PIECE))
                view[filled : filled + len(data)] = data
                filled += len(data)
        except anyio.EndOfStream:
            if filled:
                raise IncompleteReceive(filled, len(view)) from None
            raise
        except BaseException:
            self._unread = bytes(view[:filled])
            raise


def exact_receiver(stream: ByteReceiveStream) -> ReceiveStream | ExactReceiver:
    """The stream itself if it is one of ours, else a receiver over it."""
    return stream if isinstance(stream, ReceiveStream) else ExactReceiver(stream)


async def drop_stream(stream: AsyncResource) -> None:
    """Close a stream at once, and ignore its errors."""
    with (
        anyio.CancelScope(shield=True),
        contextlib.suppress(
            OSError, anyio.BrokenResourceError, anyio.ClosedResourceError
        ),
    ):
        await anyio.aclose_forcefully(stream)
