"""Planes that FFmpeg sends, and the thread in which they become pixels."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from aiozerocopy.frames import Conversion
    from aiozerocopy.streams import ReceiveStream


class Converter:
    """Receives one picture after the other, and converts it.

    A picture that was received stays until it was converted for somebody.  So a cancel
    loses nothing, not even one of asyncio's, which does not wait for the thread: what
    that still writes to is pinned until it ends, and nobody else gets it.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._planes = bytearray(conversion.yuv_bytes)
        self._has_picture = False
        self._alone = anyio.ResourceGuard("receiving from")
        self._limiter = anyio.CapacityLimiter(1)

    async def receive(self, stream: ReceiveStream, pixels: Buffer) -> None:
        """The next picture, as pixels.

        Raises: as `ReceiveStream.receive_exactly`.
        """
        with self._alone:
            if not self._has_picture:
                await stream.receive_exactly(self._planes)
                self._has_picture = True
            convert = functools.partial(self._conversion.to_rgb, self._planes, pixels)
            await anyio.to_thread.run_sync(convert, limiter=self._limiter)
            self._has_picture = False
