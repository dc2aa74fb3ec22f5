"""Frames that are changed on their way: RGB to FFmpeg, and films from it.

The way of a frame to FFmpeg
    the caller's memory -> C, without the GIL -> a slot of ours, of half the size ->
    lent to FFmpeg by the pipe.  The caller's memory is read once, before `put` returns;
    the slot is free again when FFmpeg has read it.

A picture whose rows are apart or upside down goes the same way, into a slot of its own
size, if it is not converted.

A small picture is changed at once, in the loop's thread; a large one by another
thread, so that the loop can go on.  One is changed at a time, in the order of the
calls, while those before are on their way.  A cancel leaves no trace: it waits for that
thread, which needs the caller's memory for a millisecond.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio import to_thread

from aiozerocopy._core import extras
from aiozerocopy._core.ahead import Ahead
from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.leases import view_of
from aiozerocopy.ffmpeg.run import failure
from aiozerocopy.pool import Frame, FramePool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.ffmpeg.layouts import Layout
    from aiozerocopy.frames import Conversion
    from aiozerocopy.streams import ReceiveStream, SendStream, Ticket

T = TypeVar("T", bound="AnyBuffer")

_SLOTS = 4
# Bytes of a slot that are filled at once: that of 1920x1080 in 0.4 ms.  (To hand it
# over takes another 0.1 ms, and the cores' caches.)
_AT_ONCE = 3 << 20


class SendingConverter:
    """Changes the caller's frames, and sends them to a stream."""

    def __init__(
        self,
        stream: SendStream,
        layout: Layout,
        conversion: Conversion | None = None,
        *,
        flip: bool = False,
    ) -> None:
        """Without a conversion, a frame that is contiguous and not to be flipped goes
        as it is."""
        self.conversion = conversion
        self._stream = stream
        self._layout = layout
        self._flip = flip
        size = conversion.yuv_bytes if conversion else layout.nbytes
        self._pool = FramePool(size, slots=_SLOTS)
        self._turns = Turns()
        self._thread = anyio.CapacityLimiter(1)

    async def send(self, *pieces: AnyBuffer) -> None:
        """Change a frame and send it.  Raises: as `SendStream.send`."""
        await (await self.put(*pieces))

    @in_turn
    async def put(self, *pieces: AnyBuffer) -> Ticket:
        """Change a frame and queue it; when this returns, its memory is yours.

        Raises: as `SendStream.put`.
        """
        if not (self.conversion or self._flip) and self._layout.check(pieces):
            return await self._stream.put(*pieces)
        with await self._slot() as slot:
            fill = partial(self._fill, slot, pieces)
            if slot.nbytes <= _AT_ONCE:
                fill()
            else:
                await self._in_thread(fill)
            return await self._stream.put(slot)

    async def _in_thread(self, fill: Callable[[], None]) -> None:
        """Run it in a thread, and wait for that even if asyncio cancels the task."""
        lock = threading.Lock()

        def run() -> None:
            if lock.acquire(blocking=False):
                try:
                    fill()
                finally:
                    lock.release()

        try:
            await to_thread.run_sync(run, limiter=self._thread)
        except BaseException:
            lock.acquire()  # the thread is done with the memory, or will not begin
            raise

    def _fill(self, slot: Frame, pieces: Sequence[AnyBuffer]) -> None:
        if self.conversion is None:
            _gather(pieces, slot.view, self._layout.size[1] if self._flip else 0)
            return
        convert = partial(self.conversion.to_yuv, out=slot, flip=self._flip)
        try:
            convert(pieces[0] if len(pieces) == 1 else _whole(pieces))
        except BufferError:  # not only its rows are apart
            convert(_whole(pieces))

    async def _slot(self) -> Frame:
        try:
            return await self._pool.acquire()
        except anyio.ClosedResourceError:
            raise StreamClosed("the video was closed") from None

    def close(self) -> None:
        """Let go of the slots, as they become free."""
        self._pool.close()


def _whole(pieces: Sequence[AnyBuffer]) -> AnyBuffer:
    """A contiguous copy of them all."""
    views = [*map(view_of, pieces)]
    if all(view.c_contiguous for view in views):
        return b"".join(views)
    _gather(views, room := memoryview(bytearray(sum(view.nbytes for view in views))))
    return room


def _gather(pieces: Sequence[AnyBuffer], room: memoryview, flipped: int = 0) -> None:
    """Copy the pieces into ``room``; of ``flipped`` rows, the last one first."""
    with extras.optional("a frame that is not contiguous or to be flipped", "numpy"):
        import numpy

    if flipped and len(pieces) > 1:
        pieces = [_whole(pieces)]
    start = 0
    for piece in pieces:
        array = numpy.asarray(view_of(piece))
        try:
            if flipped:
                array = array.reshape(flipped, -1)[::-1]
            numpy.copyto(numpy.ndarray(array.shape, array.dtype, room, start), array)
            start += array.nbytes
        finally:
            del array  # (a traceback would keep its memory)


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
        """Let go of the pictures that were received ahead."""
        for _, pixels in self._coming.clear():
            let_go(pixels)


def let_go(memory: object) -> None:
    """Release the memory for a frame that does not come."""
    if isinstance(memory, Frame):
        memory.release()
