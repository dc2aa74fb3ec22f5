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
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.leases import memory_of
from aiozerocopy.ffmpeg.running import failure
from aiozerocopy.pool import FramePool

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from aiozerocopy.frames import Conversion
    from aiozerocopy.pool import Frame
    from aiozerocopy.streams import ReceiveStream, SendStream, Ticket

_SLOTS = 4


class SendingConverter:
    """Between the caller's frames and a stream of converted ones."""

    def __init__(self, conversion: Conversion, stream: SendStream) -> None:
        self._conversion = conversion
        self._stream = stream
        self._pool = FramePool(conversion.yuv_shape, slots=_SLOTS)
        self._order = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)

    async def put(self, *pieces: Buffer) -> Ticket:
        """Convert a frame and queue it; when this returns, its memory is yours.

        Raises: as `SendStream.put`.
        """
        async with self._order:
            with await self._slot() as slot:
                rgb = (
                    pieces[0] if len(pieces) == 1 else b"".join(map(memory_of, pieces))
                )
                job = _Job(self._conversion, rgb, slot)
                try:
                    await to_thread.run_sync(job.run, limiter=self._thread)
                except BaseException:
                    job.give_up()
                    raise
                return await self._stream.put(slot)

    async def _slot(self) -> Frame:
        try:
            return await self._pool.acquire()
        except anyio.ClosedResourceError:
            raise StreamClosed("the video was closed") from None

    def close(self) -> None:
        """Let go of the slots, as they become free."""
        self._pool.close()


class _Job:
    """One conversion.  A cancel of asyncio waits for no thread, but `give_up` does."""

    def __init__(self, conversion: Conversion, rgb: Buffer, slot: Frame) -> None:
        self._conversion = conversion
        self._rgb = rgb
        self._slot = slot
        self._lock = threading.Lock()
        self._is_given_up = False

    def run(self) -> None:
        with self._lock:
            if not self._is_given_up:
                self._conversion.to_yuv(self._rgb, self._slot)

    def give_up(self) -> None:
        """When this returns, the memory is the caller's."""
        self._is_given_up = True
        with self._lock:
            return


_MARK = b"FRAME\n"  # before each picture
_NO_MARK = "FFmpeg has sent something else than a frame: try convert='ffmpeg'"


class ReceivingConverter:
    """Receives one picture of YUV4MPEG after the other, and converts it.

    A picture that was received stays until it was converted for somebody.  So a cancel
    loses nothing, not even one of asyncio's, which does not wait for the thread: what
    that still writes to is pinned until it ends, and nobody else gets it.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._marked = memoryview(bytearray(len(_MARK) + conversion.yuv_bytes))
        self._planes = self._marked[len(_MARK) :]
        self._has_picture = False
        self._alone = anyio.ResourceGuard("reading from")
        self._limiter = anyio.CapacityLimiter(1)

    async def receive(self, stream: ReceiveStream, pixels: Buffer) -> None:
        """The next picture, as pixels.

        Raises: as `ReceiveStream.receive_exactly`; FFmpegError: what comes is none.
        """
        with self._alone:
            if not self._has_picture:
                await stream.receive_exactly(self._marked)
                if self._marked[: len(_MARK)] != _MARK:
                    raise failure(None, "", _NO_MARK)
                self._has_picture = True
            convert = partial(self._conversion.to_rgb, self._planes, pixels)
            await to_thread.run_sync(convert, limiter=self._limiter)
            self._has_picture = False
