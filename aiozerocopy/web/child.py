"""FFmpeg as a child, which encodes H.264 by libx264, or in hardware.

It reads Matroska and writes FLV, whose packets begin with their size.  A
pipe has no way to ask for a key frame, so the frame itself asks: an odd timestamp means
a key frame.
"""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.ffmpeg import binary
from aiozerocopy.ffmpeg.codecs import KNOWN, chosen
from aiozerocopy.process import open_process
from aiozerocopy.streams import SendStream
from aiozerocopy.web.codecs import Made, x264_options
from aiozerocopy.web.matroska import film_of, head_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Buffer

    from aiozerocopy.process import Process
    from aiozerocopy.streams import ReceiveStream
    from aiozerocopy.web.codecs import Encoder, Task, Tell

FRAME_MS = 32  # from one frame to the next, for FFmpeg; even, as odd means a key frame
LAST_FRAME = (1 << 31) // FRAME_MS - 1  # by FLV's timestamps

X264 = "libx264"
_LIMITS = ("b", "maxrate", "bufsize", "g")  # x264's options that every encoder knows
_AS_ASKED = {  # key frames on demand are IDR frames, and bits are not saved for later
    "h264_nvenc": ("-forced-idr", "1", "-rc", "cbr"),
    "h264_qsv": ("-forced_idr", "1"),
}

_FLV_HEADER = 13  # with the size of the tag before the first, which is 0
_TAG_HEADER = 11
_TAG_END = 4
_VIDEO = 9
_AVC_PREFIX = 5  # frame type and codec, packet type, composition time


@asynccontextmanager
async def by_ffmpeg(
    ffmpeg: str, task: Task, tell: Tell, codec: str = X264
) -> AsyncIterator[Encoder]:
    """Raises: OSError."""
    with ChildPipes() as pipes:
        read_fd, writer = pipes.into(SendStream, "reads")
        async with open_process(
            ffmpeg_command(ffmpeg, task, codec),
            stdin=read_fd,
            stdout=True,
            env=binary.environment(),
        ) as child:
            try:
                yield _Child(task, tell, child, writer)
            finally:
                child.kill()  # nobody needs the frames inside of it


def ffmpeg_command(ffmpeg: str, task: Task, codec: str = X264) -> list[str]:
    """How FFmpeg is called: Matroska on stdin, FLV on stdout."""
    width, height = task.size
    known = KNOWN[codec]
    filters = "setparams=range=tv:colorspace=bt709"
    if task.is_half:
        filters = f"scale={width}:{height}:flags=area,{filters}"
    if known.filters:
        filters = f"{filters},{known.filters}"
    return [
        *(ffmpeg, "-hide_banner", "-nostats", "-loglevel", "error", *known.before),
        *("-f", "matroska", "-fflags", "nobuffer"),
        *("-probesize", "32", "-analyzeduration", "0", "-i", "pipe:0"),
        *("-vf", filters, "-c:v", codec, *_arguments(codec, task.bitrate)),
        *("-colorspace", "bt709", "-color_primaries", "bt709"),
        *("-color_trc", "bt709", "-color_range", "tv"),
        *("-enc_time_base", "1:1000", "-force_key_frames", "expr:mod(round(t*1000),2)"),
        *("-f", "flv", "-flvflags", "no_duration_filesize", "-flush_packets", "1"),
        "pipe:1",
    ]


def _arguments(codec: str, bitrate: int) -> list[str]:
    options = x264_options(bitrate)
    if codec == X264:
        return [word for name in options for word in (f"-{name}:v", options[name])]
    limits = [word for name in _LIMITS for word in (f"-{name}:v", options[name])]
    live = chosen(codec, low_delay=True).arguments
    return [*live, *_AS_ASKED.get(codec, ()), *limits]


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
        # The first frame out is a key frame anyway; FFmpeg counts from its timestamp.
        when = (number + 1) * FRAME_MS + (is_key and number > 0)
        message = [head_of(nbytes, when), planes]
        if number == 0:  # (FFmpeg's output begins with its second frame)
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
