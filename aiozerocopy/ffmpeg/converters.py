"""Frames that are converted between the caller and FFmpeg: RGB to it, films from it.

The path of a frame to FFmpeg
    the caller's memory -> C, without the GIL -> a slot of ours, of half the size ->
    lent to FFmpeg by the pipe.  The caller's memory is read once, before `put` returns;
    the slot is free again when FFmpeg has read it.

A picture that is not converted, but whose rows are apart or upside down, takes the same
path: it is copied into a slot of its own size.

A small picture is converted in the loop's thread; a large one in another thread, so
that the loop can go on.  One picture is converted at a time, in the order of the calls,
while earlier ones are being sent.  A cancelled call waits for the thread, which needs
the caller's memory for a millisecond, and then has sent nothing.
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
# Slots of at most these bytes are filled in the loop's thread: 1920x1080 takes 0.4 ms.
# (A hand-over to another thread takes 0.1 ms more, and loses the core's cache.)
_AT_ONCE = 3 << 20


class SendingConverter:
    """Converts the caller's frames, and sends them to a stream."""

    def __init__(
        self,
        stream: SendStream,
        layout: Layout,
        conversion: Conversion | None = None,
        *,
        flip: bool = False,
    ) -> None:
        """Contiguous frames are sent as they are, unless converted or flipped."""
        self.conversion = conversion
        self._stream = stream
        self._layout = layout
        self._flip = flip
        size = conversion.yuv_bytes if conversion else layout.nbytes
        self._pool = FramePool(size, slots=_SLOTS)
        self._turns = Turns()
        self._thread = anyio.CapacityLimiter(1)

    async def send(self, *pieces: AnyBuffer) -> None:
        """Convert a frame and send it.  Raises: as `SendStream.send`."""
        await (await self.put(*pieces))

    @in_turn
    async def put(self, *pieces: AnyBuffer) -> Ticket:
        """Convert a frame and queue it; when this returns, its memory is yours.

        A frame that needs no conversion is sent as it is, and stays borrowed until the
        ticket is done.

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
        """Run ``fill`` in a thread; wait for its end even if the task is cancelled."""
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
        except BufferError:  # its pixels are apart, not only its rows
            convert(_whole(pieces))

    async def _slot(self) -> Frame:
        try:
            return await self._pool.acquire()
        except anyio.ClosedResourceError:
            raise StreamClosed("the video was closed") from None

    def close(self) -> None:
        """Let go of the slots as they become free."""
        self._pool.close()


def _whole(pieces: Sequence[AnyBuffer]) -> AnyBuffer:
    """Return a contiguous copy of all pieces."""
    views = [*map(view_of, pieces)]
    if all(view.c_contiguous for view in views):
        return b"".join(views)
    _gather(views, room := memoryview(bytearray(sum(view.nbytes for view in views))))
    return room


def _gather(pieces: Sequence[AnyBuffer], room: memoryview, flipped: int = 0) -> None:
    """Copy the pieces into ``room``; ``flipped`` rows, if any, in reverse order."""
    with extras.optional("a frame that is flipped or not contiguous", "numpy"):
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
_NO_MARK = "FFmpeg has sent something other than a frame: try convert='ffmpeg'"
_AHEAD = 2  # pictures at a time: the next one, and the one after it


class ReceivingConverter(Generic[T]):
    """Receives the pictures of a YUV4MPEG stream as pixels, one after the other.

    C receives and converts the next picture while the program looks at the last, if
    there is memory for it.  A cancelled call loses nothing: the next call gets the
    picture.
    """

    def __init__(self, conversion: Conversion, stream: ReceiveStream) -> None:
        self._conversion = conversion
        picture = len(_MARK) + conversion.yuv_bytes
        self._marked = [memoryview(bytearray(picture)) for _ in range(_AHEAD)]
        self._coming: Ahead[tuple[memoryview, T]] = Ahead(stream)
        self._taken: list[tuple[memoryview, T]] = []  # at most one, not returned yet
        self._is_busy = False

    async def receive(
        self, room: Callable[[], Awaitable[T]], spare: Callable[[], T | None]
    ) -> T:
        """Return the next picture.

        ``room`` waits for memory; ``spare``, for a picture ahead, returns None instead.

        Raises: as `Ahead.take`, ``room`` and ``spare``; FFmpegError: not a picture.
        """
        if self._is_busy:
            raise anyio.BusyResourceError("reading from")
        self._is_busy = True
        try:
            if not self._taken:
                if not self._coming:
                    self._begin(await room())
                if len(self._coming) < _AHEAD and (pixels := spare()) is not None:
                    self._begin(pixels)
                # (one statement: no signal handler runs before it is stored)
                self._taken += (await self._coming.take(),)
            marked, pixels = self._taken[0]
            if marked[: len(_MARK)] != _MARK:
                self._taken.clear()
                let_go(pixels)
                raise failure(None, "", _NO_MARK)
            # (One line without a call: a signal handler may raise at a new line or a
            # call.)
            del self._taken[0]; self._is_busy = False; return pixels  # noqa: E702  # fmt: skip
        except BaseException:
            self._is_busy = False
            raise

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
        """Release the pictures that were received ahead."""
        for _, pixels in self._taken + self._coming.clear():
            let_go(pixels)
        self._taken.clear()


def let_go(memory: object) -> None:
    """Release the memory of a frame that does not come."""
    if isinstance(memory, Frame):
        memory.release()
