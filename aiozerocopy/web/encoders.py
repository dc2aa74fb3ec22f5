"""The encoders: those of PyAV in this process, or for H.264 FFmpeg as a child.

All take planes (see `planes`) one by one, hold none back, and pass on packets as
WebCodecs takes them.  PyAV is quicker, as it needs no pipe and no other process, and
from PyAV 19 on its bitrate of H.264 can change while it runs.

FFmpeg reads Matroska and writes FLV, whose packets tell their size before they come.  A
pipe has no way to ask for a key frame, so the frame itself asks: an odd timestamp means
a key frame.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import anyio
import anyio.to_thread

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.ffmpeg import binary
from aiozerocopy.process import open_process
from aiozerocopy.streams import SendStream
from aiozerocopy.web.matroska import film_of, head_of
from aiozerocopy.web.planes import even

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Buffer

    from aiozerocopy.process import Process
    from aiozerocopy.streams import ReceiveStream
    from aiozerocopy.web.pixels import PictureFormat

FRAME_MS = 32  # from one frame to the next, for FFmpeg; even, as odd means a key frame
LAST_FRAME = (1 << 31) // FRAME_MS - 1  # by FLV's timestamps
FPS = 30  # that bitrates are meant for

_FLV_HEADER = 13  # with the size of the tag before the first, which is 0
_TAG_HEADER = 11
_TAG_END = 4
_VIDEO = 9
_AVC_PREFIX = 5  # frame type and codec, packet type, composition time
_NEVER = "1000000"  # frames from one key frame to the next that nobody asked for
_GLOBAL_HEADER = 1 << 22  # libavcodec's flag: the configuration is apart


@dataclass(frozen=True)
class Codec:
    """What browsers decode, and how PyAV encodes it without a delay."""

    title: str
    library: str
    bits: float  # that it needs for the same picture, as a part of H.264's
    retunes: bool  # may the bitrate change while it runs?
    formats: tuple[str, ...]  # of planes
    options: Callable[[int], dict[str, str]]  # for this bitrate


def _x264_options(bitrate: int) -> dict[str, str]:
    """A buffer of 0.1 s limits a key frame to three or four other frames."""
    return {
        **{"preset": "ultrafast", "tune": "zerolatency", "g": _NEVER},
        **{"b": str(bitrate), "maxrate": str(bitrate), "bufsize": str(bitrate // 10)},
    }


def _x264_in_process(bitrate: int) -> dict[str, str]:
    options = {"forced-idr": "1", "x264-params": "annexb=0"}
    return _x264_options(bitrate) | options


def _svt_options(bitrate: int) -> dict[str, str]:
    """As for calls: no frame waits for others, and each 0.1 s keeps to its bits."""
    buffer = "buf-sz=100:buf-initial-sz=60:buf-optimal-sz=60"
    return {
        **{"preset": "11", "b": str(bitrate), "g": _NEVER},
        **{"svtav1-params": f"rtc=1:pred-struct=1:rc=2:lp=2:{buffer}"},
    }


H264 = Codec("H.264", "libx264", 1, True, ("yuv420p", "nv12"), _x264_in_process)
AV1 = Codec("AV1", "libsvtav1", 0.5, False, ("yuv420p",), _svt_options)
CODECS = {"h264": H264, "av1": AV1}  # by the mode of the page


@dataclass(frozen=True)
class Task:
    """What to encode: the planes of a picture, whose own sides may be odd."""

    picture: PictureFormat
    bitrate: int
    is_half: bool = False  # half as wide and high

    @property
    def planes(self) -> PictureFormat:
        width, height = even(self.picture.width), even(self.picture.height)
        return replace(self.picture, width=width, height=height)

    @property
    def size(self) -> tuple[int, int]:
        """The size of the encoded picture."""
        part = 2 if self.is_half else 1
        width, height = self.planes.width, self.planes.height
        return even(width // part), even(height // part)


class Made(NamedTuple):
    """What an encoder has made of a frame, or the configuration before the first."""

    number: int  # of the frame; -1 for the configuration
    is_key: bool
    payload: Buffer


class Encoder(Protocol):
    last: float  # the highest number of a frame that it takes

    async def encode(self, planes: Buffer, number: int, *, is_key: bool) -> None:
        """Take a frame, numbered from 0.

        Raises: OSError.
        """

    async def wait(self) -> str:
        """Return why it has ended by itself."""

    def follow(self, bitrate: int) -> bool:
        """Change the bitrate, or return False: another one must be started."""


Tell: TypeAlias = "Callable[[Made], object]"
Encoders: TypeAlias = "Callable[[Task, Tell], AbstractAsyncContextManager[Encoder]]"


def find_encoders(codec: Codec = H264) -> Encoders | None:
    """Return the best that is installed; none without NumPy, which makes the planes."""
    if not importlib.util.find_spec("numpy"):
        return None
    if importlib.util.find_spec("av"):
        with contextlib.suppress(Exception):  # it is broken, or lacks the library
            import av

            av.Codec(codec.library, "w")
            if codec is AV1:  # (its library prints to stderr)
                os.environ.setdefault("SVT_LOG", "0")
            return partial(in_process, codec)
    ffmpeg = ffmpeg_if_any() if codec is H264 else None
    return None if ffmpeg is None else partial(by_ffmpeg, ffmpeg)


def ffmpeg_if_any() -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return binary.find_ffmpeg()
    return None


# ---- in this process ----------------------------------------------------------------


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
        self._convert: Any = None  # to its size and format

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
        """Copy the planes into the frame, which has padding: FFmpeg reads beyond.

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
        """libx264 takes it with the next frame (PyAV 19 lets us set all three)."""
        context = self._context
        if not self._codec.retunes or not hasattr(type(context), "rc_buffer_size"):
            return False
        context.bit_rate = context.max_bit_rate = bitrate
        context.rc_buffer_size = bitrate // 10
        return True


# ---- as a child ---------------------------------------------------------------------


@asynccontextmanager
async def by_ffmpeg(ffmpeg: str, task: Task, tell: Tell) -> AsyncIterator[Encoder]:
    """Raises: OSError."""
    with ChildPipes() as pipes:
        read_fd, writer = pipes.into(SendStream, "reads")
        async with open_process(
            ffmpeg_command(ffmpeg, task),
            stdin=read_fd,
            stdout=True,
            env=binary.environment(),
        ) as child:
            try:
                yield _Child(task, tell, child, writer)
            finally:
                child.kill()  # nobody needs the frames inside of it


def ffmpeg_command(ffmpeg: str, task: Task) -> list[str]:
    """How FFmpeg is called: Matroska on stdin, FLV on stdout."""
    width, height = task.size
    filters = "setparams=range=tv:colorspace=bt709"
    if task.is_half:
        filters = f"scale={width}:{height}:flags=area,{filters}"
    options = _x264_options(task.bitrate).items()
    return [
        *(ffmpeg, "-hide_banner", "-nostats", "-loglevel", "error"),
        *("-f", "matroska", "-fflags", "nobuffer"),
        *("-probesize", "32", "-analyzeduration", "0", "-i", "pipe:0"),
        *("-vf", filters, "-c:v", "libx264"),
        *(word for name, value in options for word in (f"-{name}:v", value)),
        *("-colorspace", "bt709", "-color_primaries", "bt709"),
        *("-color_trc", "bt709", "-color_range", "tv"),
        *("-enc_time_base", "1:1000", "-force_key_frames", "expr:mod(round(t*1000),2)"),
        *("-f", "flv", "-flvflags", "no_duration_filesize", "-flush_packets", "1"),
        "pipe:1",
    ]


class _Child:
    """FFmpeg."""

    def __init__(
        self, task: Task, tell: Tell, child: Process, writer: SendStream
    ) -> None:
        self.last: float = LAST_FRAME - 1
        self._planes = task.planes
        self._tell = tell
        self._child = child
        self._writer = writer

    async def encode(self, planes: Buffer, number: int, *, is_key: bool) -> None:
        nbytes = memoryview(planes).nbytes
        # The first one out is a key frame anyway; FFmpeg counts from its timestamp.
        when = (number + 1) * FRAME_MS + (is_key and number > 0)
        message = [head_of(nbytes, when), planes]
        if number == 0:  # (FFmpeg's output begins with the second)
            message[:0] = film_of(self._planes, FRAME_MS) + head_of(nbytes, 0), planes
        with contextlib.suppress(StreamBroken):  # its output ends then: see `wait`
            await self._writer.send(*message)

    async def wait(self) -> str:
        """Pass on what FFmpeg makes; return why it has ended."""
        stdout = self._child.stdout
        assert stdout is not None
        with contextlib.suppress(IncompleteReceive, anyio.EndOfStream):
            await stdout.receive_exactly(bytearray(_FLV_HEADER))
            while True:
                self._take(*await _next_tag(stdout))
        return f"FFmpeg ended: {self._child.stderr_tail.strip() or 'without a message'}"

    def _take(self, timestamp: int, tag: memoryview) -> None:
        is_key, packet, payload = tag[0] >> 4 == 1, tag[1], tag[_AVC_PREFIX:]
        if packet == 0:
            self._tell(Made(-1, True, payload))
        elif packet == 1:
            self._tell(Made(timestamp // FRAME_MS - 1, is_key, payload))

    def follow(self, bitrate: int) -> bool:
        return False


async def _next_tag(stdout: ReceiveStream) -> tuple[int, memoryview]:
    """The next video tag's timestamp and content; others are skipped."""
    header = bytearray(_TAG_HEADER)
    while True:
        await stdout.receive_exactly(header)
        size = int.from_bytes(header[1:4], "big")
        content = bytearray(size + _TAG_END)
        await stdout.receive_exactly(content)
        if header[0] == _VIDEO and size >= _AVC_PREFIX:
            timestamp = int.from_bytes(header[7:8] + header[4:7], "big")
            return timestamp, memoryview(content)[:size]
