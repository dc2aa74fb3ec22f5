"""Frames that are converted: RGB on its way to FFmpeg, and films on their way from it.

The way of a frame to FFmpeg
    the caller's memory -> C, in a thread and without the GIL -> a slot of ours, of half
    the size -> lent to FFmpeg by the pipe.  The caller's memory is read once, before
    `put` returns; the slot is free again when FFmpeg has read it.

One is converted at a time, in the order of the calls, while the one before is on its
way.  A cancel leaves no trace: one during a conversion waits for the thread, which has
the caller's memory for a millisecond.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio import to_thread

from aiozerocopy._core.ahead import Ahead
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.leases import memory_of
from aiozerocopy.ffmpeg.run import failure
from aiozerocopy.pool import Frame, FramePool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Buffer

    from aiozerocopy.frames import Conversion
    from aiozerocopy.streams import ReceiveStream, SendStream, Ticket

T = TypeVar("T", bound="Buffer")

_SLOTS = 4


class SendingConverter:
    """Between the caller's frames and a stream of converted ones."""

    def __init__(self, conversion: Conversion, stream: SendStream) -> None:
        self._conversion = conversion
        self._stream = stream
        self._pool = FramePool(conversion.yuv_shape, slots=_SLOTS)
        self._order = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)

    async def send(self, *pieces: Buffer) -> None:
        """Convert a frame and send it.  Raises: as `SendStream.send`."""
        await (await self.put(*pieces))

    async def put(self, *pieces: Buffer) -> Ticket:
        """Convert a frame and queue it; when this returns, its memory is yours.

        Raises: as `SendStream.put`.
        """
        async with self._order:
            with await self._slot() as slot:
                rgb = (
                    pieces[0] if len(pieces) == 1 else b"".join(map(memory_of, pieces))
                )
                await self._convert(rgb, slot)
                return await self._stream.put(slot)

    async def _convert(self, rgb: Buffer, slot: Frame) -> None:
        """In a thread, for which a cancel of asyncio does not wait, but this does."""
        lock = threading.Lock()

        def convert() -> None:
            if lock.acquire(blocking=False):
                try:
                    self._conversion.to_yuv(rgb, slot)
                finally:
                    lock.release()

        try:
            await to_thread.run_sync(convert, limiter=self._thread)
        except BaseException:
            lock.acquire()  # the thread is done with the memory, or will not begin
            raise

    async def _slot(self) -> Frame:
        try:
            return await self._pool.acquire()
        except anyio.ClosedResourceError:
            raise StreamClosed("the video was closed") from None

    def close(self) -> None:
        """Let go of the slots, as they become free."""
        self._pool.close()


_MARK = b"FRAME\n"  # before each picture
_NO_MARK = "FFmpeg has sent something else than a frame: try convert='ffmpeg'"
_AHEAD = 2  # pictures at a time: the one that is asked for, and the next


class ReceivingConverter(Generic[T]):
    """Receives one picture of YUV4MPEG after the other as pixels.

    C receives and converts the next while the program looks at the last, if there is
    memory for it.  A cancel changes nothing: the picture is the next one's.
    """

    def __init__(self, conversion: Conversion, stream: ReceiveStream) -> None:
        self._conversion = conversion
        picture = len(_MARK) + conversion.yuv_bytes
        self._marked = [memoryview(bytearray(picture)) for _ in range(_AHEAD)]
        self._coming: Ahead[tuple[memoryview, T]] = Ahead(stream)
        self._alone = anyio.ResourceGuard("reading from")

    async def receive(
        self, room: Callable[[], Awaitable[T]], spare: Callable[[], T | None]
    ) -> T:
        """The next picture.

        ``room`` waits for memory; ``spare``, for a picture ahead, returns None instead.

        Raises: as `Ahead.take`, ``room`` and ``spare``; FFmpegError: not a picture.
        """
        with self._alone:
            if not self._coming:
                self._begin(await room())
            if len(self._coming) < _AHEAD and (pixels := spare()) is not None:
                self._begin(pixels)
            marked, pixels = await self._coming.take()
            if marked[: len(_MARK)] != _MARK:
                let_go(pixels)
                raise failure(None, "", _NO_MARK)
            return pixels

    def _begin(self, pixels: T) -> None:
        busy = [id(marked) for marked, _ in self._coming]
        marked = next(one for one in self._marked if id(one) not in busy)
        try:
            then = self._conversion.then_rgb(marked[len(_MARK) :], pixels)
            self._coming.begin(marked, then, (marked, pixels))
        except BaseException:
            let_go(pixels)
            raise

    def close(self) -> None:
        """Let go of the memory of those that came ahead."""
        for _, pixels in self._coming.clear():
            let_go(pixels)


def let_go(memory: object) -> None:
    """Release what was meant for a frame that does not come."""
    if isinstance(memory, Frame):
        memory.release()
