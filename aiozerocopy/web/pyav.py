"""The encoders of PyAV, in this process.

From PyAV 19 on, the bitrate of H.264 can change while they run.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aiozerocopy.web.codecs import FPS, Made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from typing_extensions import Buffer

    from aiozerocopy.web.codecs import Codec, Encoder, Task, Tell

_GLOBAL_HEADER = 1 << 22  # libavcodec's flag: the configuration is not in the packets


@asynccontextmanager
async def in_process(codec: Codec, task: Task, tell: Tell) -> AsyncIterator[Encoder]:
    """Raises: OSError."""
    encoder = _InProcess(codec, task, tell)
    try:
        await encoder.open()
        yield encoder
    finally:
        encoder.close()


class _InProcess:
    """A library of PyAV, in worker threads, without the GIL."""

    last: float = math.inf

    def __init__(self, codec: Codec, task: Task, tell: Tell) -> None:
        self._codec = codec
        self._task = task
        self._tell = tell
        self._context: Any = None
        self._frame: Any = None  # with the planes; the encoder keeps a copy
        self._convert: Any = None  # to the encoder's size and format

    async def open(self) -> None:
        await self._in_thread(self._open)
        self._tell(Made(-1, True, bytes(self._context.extradata)))

    def _open(self) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        task, codec, form = self._task, self._codec, self._task.picture.form.name
        context: Any = av.CodecContext.create(codec.library, "w")
        context.width, context.height = task.size
        context.pix_fmt = form if form in codec.formats else codec.formats[0]
        context.time_base, context.framerate = Fraction(1, FPS), Fraction(FPS)
        context.color_range = context.colorspace = 1  # limited, and BT.709
        context.color_primaries = context.color_trc = 1
        context.flags |= _GLOBAL_HEADER
        context.options = codec.options(task.bitrate)
        context.open()
        self._frame = av.VideoFrame(task.planes.width, task.planes.height, form)
        self._context, reformatter = context, VideoReformatter()
        if task.is_half or context.pix_fmt != form:
            to = {"format": context.pix_fmt, "interpolation": "AREA"}
            self._convert = lambda: reformatter.reformat(self._frame, *task.size, **to)

    def close(self) -> None:
        """Free the encoder and its threads now, even if a traceback refers to this."""
        self._context = self._frame = self._convert = None

    async def encode(self, planes: Buffer, number: int, *, is_key: bool) -> None:
        for made in await self._in_thread(self._encode, planes, number, is_key):
            self._tell(made)

    def _encode(self, planes: Buffer, number: int, is_key: bool) -> list[Made]:
        from av.video.frame import PictureType

        self._fill(planes)
        frame = self._convert() if self._convert else self._frame
        frame.pts = number
        frame.pict_type = PictureType.I if is_key else PictureType.NONE
        packets = self._context.encode(frame)
        return [Made(each.pts, each.is_keyframe, bytes(each)) for each in packets]

    def _fill(self, planes: Buffer) -> None:
        """Copy the planes into the frame, which has padding: FFmpeg reads beyond them.

        (PyAV's `from_numpy_buffer` is right only for heights that are multiples of 4.)
        """
        import numpy

        rest = numpy.frombuffer(planes, numpy.uint8)
        luma, *chroma = self._frame.planes
        for plane in (luma, *chroma):
            rows = numpy.frombuffer(plane, numpy.uint8).reshape(plane.height, -1)
            width = luma.width if plane is luma else luma.width // len(chroma)
            part, rest = numpy.split(rest, [plane.height * width])
            rows[:, :width] = part.reshape(-1, width)

    async def _in_thread(self, call: Callable[..., Any], *args: object) -> Any:
        try:
            return await anyio.to_thread.run_sync(call, *args)
        except Exception as error:
            raise OSError(f"PyAV: {type(error).__name__}: {error}") from None

    async def wait(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    def follow(self, bitrate: int) -> bool:
        """libx264 takes these with the next frame (PyAV 19 lets us set all three)."""
        context = self._context
        if not self._codec.retunes or not hasattr(type(context), "rc_buffer_size"):
            return False
        context.bit_rate = context.max_bit_rate = bitrate
        context.rc_buffer_size = bitrate // 10
        return True
