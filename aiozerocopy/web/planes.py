"""Frames as the encoders of H.264 and AV1 take them: YUV 4:2:0 of an even size.

Each frame is converted once for all renditions, in a worker thread: the hub calls
`Planes.message` once for all its clients that use it.  The frame's memory is free as
soon as that returns, however long the encoders take.

A message has the layout of `pixels`: a header with the size of the frame, and planes
whose sides are even.  A frame that cannot be shown becomes the message that says why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aiozerocopy import frames
from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy.web.pixels import (
    FORMATS,
    PIXELS,
    UnknownPicture,
    picture_format,
    reason_message,
    websocket_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Published
    from aiozerocopy.web.pixels import PictureFormat

_YUV420P = FORMATS["yuv420p"]
_GREY, _BLACK = 128, 16  # of chroma and luma, in limited range


def even(size: int) -> int:
    return size + size % 2


class Planes:
    """Makes the messages, one after the other, also if the hub asks for two at once.

    (It does when a rendition begins anew while the previous frame is converted.)
    """

    def __init__(self) -> None:
        self._conversion: frames.Conversion | None = None
        self._memory = memoryview(b"")  # of the conversion's result
        self._turns = Turns()

    @in_turn
    async def message(self, frame: Published) -> Sequence[Buffer]:
        try:
            picture = picture_format(frame)
        except UnknownPicture as reason:
            return reason_message(frame, reason)
        planes = await anyio.to_thread.run_sync(self._planes, frame, picture)
        if not picture.form.is_yuv:
            picture = replace(picture, form=_YUV420P)
        when = frame.sequence, frame.timestamp_ns
        return websocket_message(planes, PIXELS, picture, *when, key=True)

    def _planes(self, frame: Published, picture: PictureFormat) -> bytes:
        """Return the planes as bytes, which the hub need not copy for slow encoders."""
        array = frame.array
        if picture.form.is_yuv:
            return _of_even_height(array, picture.height)
        if picture.form.channels == 1:
            return _of_grey(array)
        return self._of_rgb(_of_even_size(array), picture.form.name)

    def _of_rgb(self, array: Any, form: str) -> bytes:
        height, width = array.shape[:2]
        made = self._conversion
        if made is None or (made.rgb, *made.size) != (form, width, height):
            made = frames.Conversion(form, _YUV420P.name, (width, height))
            self._conversion, self._memory = made, memoryview(bytearray(made.yuv_bytes))
        made.to_yuv(array, self._memory)
        return bytes(self._memory)


def _of_even_size(array: Any) -> Any:
    """Return an array of even size, with black added at the right and below."""
    import numpy

    height, width = array.shape[:2]
    more = [(0, height % 2), (0, width % 2), (0, 0)][: array.ndim]
    return numpy.pad(array, more) if height % 2 or width % 2 else array


def _of_even_height(planes: Any, height: int) -> bytes:
    """Return YUV, with a black row added if the height is odd (the width never is)."""
    whole: bytes = planes.tobytes()
    luma = planes.shape[1] * height
    row = bytes([_BLACK]) * planes.shape[1] * (height % 2)
    return b"".join((whole[:luma], row, whole[luma:])) if row else whole


def _of_grey(array: Any) -> bytes:
    import numpy

    levels = numpy.arange(256)
    luma = (_BLACK + (levels * 219 + 127) // 255).astype(numpy.uint8)
    grey = luma[_of_even_size(array.reshape(array.shape[:2]))]
    whole: bytes = grey.tobytes() + bytes([_GREY]) * (grey.size // 2)
    return whole
