"""Frames that are converted on their way to FFmpeg.

The way of a frame
    the caller's memory -> C, in a thread and without the GIL -> a slot of ours, of half
    the size -> lent to FFmpeg by the pipe.  The caller's memory is read once, before
    `put` returns; the slot is free again when FFmpeg has read it.

One is converted at a time, in the order of the calls, while the one before is on its
way.  A cancel before that leaves no trace; one during it waits for the thread, which
has the caller's memory for a millisecond.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.leases import memory_of
from aiozerocopy.pool import FramePool

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from aiozerocopy.frames import Conversion
    from aiozerocopy.pool import Frame
    from aiozerocopy.streams import SendStream, Ticket

_SLOTS = 4


class Converter:
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
                convert = partial(self._conversion.to_yuv, rgb, slot)
                await to_thread.run_sync(convert, limiter=self._thread)
                return await self._stream.put(slot)

    async def _slot(self) -> Frame:
        try:
            return await self._pool.acquire()
        except anyio.ClosedResourceError:
            raise StreamClosed("the video was closed") from None

    def close(self) -> None:
        """Let go of the slots, as they become free."""
        self._pool.close()
