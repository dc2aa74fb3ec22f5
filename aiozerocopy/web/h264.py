"""H.264 for the viewers whose browser decodes it: one FFmpeg for all of them.

How a frame travels
    hub -> a pipe of ours -> FFmpeg (libx264, no delay: one frame in, one packet out)
        -> FLV, whose packets tell their size before they come -> `Packet`, made once
        -> a `PacketQueue` for each viewer, which begins with a key frame

FFmpeg runs while somebody watches, and is started anew when the picture's size changes.
A frame that cannot be shown does not reach it: viewers get the reason at once.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.ffmpeg import binary
from aiozerocopy.process import open_process
from aiozerocopy.streams import SendStream
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.pixels import (
    H264,
    H264_CONFIGURATION,
    REASON,
    UnknownPicture,
    picture_format,
    reason_message,
    websocket_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Broadcast, Client, Event, Published
    from aiozerocopy.process import Process
    from aiozerocopy.streams import ReceiveStream
    from aiozerocopy.web.pixels import PictureFormat

GROUP = 60  # frames from one key frame to the next
FPS = 30  # for FFmpeg, which makes bits a frame of it
MIN_BITRATE, MAX_BITRATE = 2_000_000, 8_000_000  # bits a second, at that rate

log: logging.Logger = logging.getLogger("aiozerocopy")

# Browsers decode HD as BT.709, whatever the stream says; and H.264 has no odd sizes.
_FILTERS = (
    "pad=ceil(iw/2)*2:ceil(ih/2)*2,"
    "scale=out_color_matrix=bt709:out_range=tv{yuv},format=yuv420p"
)
_YUV = ":in_color_matrix=bt709:in_range=tv"  # (RGB has neither)
_FLV_HEADER = 13  # with the size of the tag before the first, which is 0
_TAG_HEADER = 11
_TAG_END = 4
_VIDEO = 9
_AVC_PREFIX = 5  # frame type and codec, packet type, composition time


def ffmpeg_if_any() -> str | None:
    """The FFmpeg to use, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        return binary.find_ffmpeg()
    return None


def bitrate(width: int, height: int) -> int:
    """Bits a second: 8 million for 1920x1080, less in proportion to the sides."""
    part = math.sqrt(width * height / (1920 * 1080))
    return round(min(max(part * MAX_BITRATE, MIN_BITRATE), MAX_BITRATE))


def ffmpeg_command(ffmpeg: str, picture: PictureFormat) -> list[str]:
    """How FFmpeg is called: pixels of this picture on stdin, FLV on stdout."""
    rate = bitrate(picture.width, picture.height)
    return [
        *(ffmpeg, "-hide_banner", "-nostats", "-loglevel", "error"),
        *("-f", "rawvideo", "-pix_fmt", picture.form.name),
        *("-video_size", f"{picture.width}x{picture.height}", "-framerate", str(FPS)),
        *("-probesize", "32", "-analyzeduration", "0", "-i", "pipe:0"),
        *("-vf", _FILTERS.format(yuv=_YUV if picture.form.is_yuv else "")),
        *("-colorspace", "bt709", "-color_primaries", "bt709"),
        *("-color_trc", "bt709", "-color_range", "tv"),
        *("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency"),
        *("-b:v", str(rate), "-maxrate", str(rate), "-bufsize", str(rate)),
        *("-g", str(GROUP)),
        *("-f", "flv", "-flvflags", "no_duration_filesize", "-flush_packets", "1"),
        "pipe:1",
    ]


@dataclass(frozen=True)
class Packet:
    """One message for the viewers, shared by all."""

    buffers: Sequence[Buffer]
    kind: int  # of its payload: see `pixels`
    key: bool

    @property
    def nbytes(self) -> int:
        return sum(len(memoryview(buffer)) for buffer in self.buffers)

    @property
    def is_picture(self) -> bool:
        return self.kind == H264


class PacketQueue:
    """Packets that wait for one viewer; if too many do, it goes on at a key frame."""

    def __init__(self, limit: int) -> None:
        self.dropped: int = 0  # pictures
        self._limit = limit
        self._packets: FrameQueue[Packet] = FrameQueue()
        self._ended = False
        self._change = Change()

    def push(self, packet: Packet) -> None:
        if not packet.is_picture or self._packets.accepts(packet):
            self._packets.append(packet)
        else:
            self.dropped += 1
        if len(self._packets) > self._limit:
            self._drop_all()
        self._change.happen()

    def _drop_all(self) -> None:
        """Keep only the newest configuration, which the next key frame needs."""
        dropped = self._packets.drop_to(0)
        self.dropped += sum(packet.is_picture for packet in dropped)
        needed = [packet for packet in dropped if packet.kind == H264_CONFIGURATION]
        for configuration in needed[-1:]:
            self._packets.append(configuration)

    def end(self) -> None:
        self._ended = True
        self._change.happen()

    async def next(self) -> Packet | None:
        """The next packet; None at the end."""
        while not self._packets:
            if self._ended:
                return None
            await self._change.next()
        return self._packets.pop()


class _Run:
    """One FFmpeg: the picture it was started for, and the frames inside of it."""

    def __init__(self, tell: Callable[[Packet], object]) -> None:
        self.picture: PictureFormat | None = None
        self.begun = anyio.Event()  # the picture is known
        self.changed = anyio.Event()  # it is another one now
        self.failure = ""
        self._tell = tell  # sends a packet to all viewers
        self._configuration: list[Packet] = []
        self._reason: list[Packet] = []  # why the newest frame cannot be shown
        # The last key frame, and all that followed.
        self._latest: FrameQueue[Packet] = FrameQueue()
        self._timestamps: dict[int, int] = {}  # of frames that may still be sent
        self._sent: collections.deque[tuple[int, int]] = collections.deque()
        self._encoded: collections.deque[tuple[bool, memoryview]] = collections.deque()

    def feed(self, frame: Published) -> Sequence[Buffer]:
        """What FFmpeg gets of a frame: its pixels, or nothing.

        Raises: ValueError, which ends the hub's client, if it is another picture.
        """
        try:
            picture = picture_format(frame)
        except UnknownPicture as reason:
            packet = Packet(reason_message(frame, reason), REASON, key=False)
            self._reason = [packet]
            self._tell(packet)
            return (b"",)
        self._reason = []
        if self.picture is None:
            self.picture = picture
            self.begun.set()
        elif self.picture != picture:
            self.changed.set()
            raise ValueError(f"the picture is {picture} now")
        self._timestamps[frame.sequence] = frame.timestamp_ns
        return (frame.view,)

    def on_event(self, _client: Client, event: Event, sequence: int) -> None:
        timestamp = self._timestamps.pop(sequence, None)
        if event == "sent" and timestamp is not None:
            self._sent.append((sequence, timestamp))

    def take(self, tag: memoryview) -> None:
        """Send the packets that a tag of FFmpeg's completes.

        Each frame becomes one packet, in the same order; but a packet may come before
        the hub says that its frame was sent.
        """
        picture, prefix, payload = self.picture, tag[:_AVC_PREFIX], tag[_AVC_PREFIX:]
        assert picture is not None
        if prefix[1] == 0:
            kind = H264_CONFIGURATION
            message = websocket_message(payload, kind, picture, 0, 0, key=True)
            packet = Packet(message, kind, key=True)
            self._configuration = [packet]
            self._tell(packet)
        if prefix[1] == 1:
            self._encoded.append((prefix[0] >> 4 == 1, payload))
        while self._encoded and self._sent:
            key, payload = self._encoded.popleft()
            frame = self._sent.popleft()
            message = websocket_message(payload, H264, picture, *frame, key=key)
            packet = Packet(message, H264, key)
            if self._latest.accepts(packet):
                self._latest.append(packet)
            if key:
                self._latest.drop_to(1)
            self._tell(packet)

    def packets_so_far(self) -> list[Packet]:
        """What a newcomer needs to decode what follows."""
        return [*self._configuration, *self._latest, *self._reason]


class H264Encoder:
    """The encoder, and the queues of its viewers."""

    def __init__(self, hub: Broadcast, ffmpeg: str) -> None:
        self._hub = hub
        self._ffmpeg = ffmpeg
        # Weak: a queue that a signal's exception leaves here ends with its task.
        self._queues: WeakSet[PacketQueue] = WeakSet()
        self._running = False
        self._scope: anyio.CancelScope | None = None
        self._current = _Run(self._push)

    # -- viewers ------------------------------------------------------------------

    def subscribe(self) -> PacketQueue:
        """A queue of packets, from the latest key frame on.

        Raises:
            StreamClosed: the hub is closed.
            RuntimeError: it is not entered.
        """
        queue = PacketQueue(2 * GROUP)
        for packet in self._current.packets_so_far():
            queue.push(packet)
        self._queues.add(queue)
        if not self._running:
            try:
                self._running = True
                self._hub._start_soon(self._run, "H.264")
            except BaseException:
                self._running = False
                self._queues.discard(queue)
                raise
        return queue

    def unsubscribe(self, queue: PacketQueue) -> None:
        self._queues.discard(queue)
        self._stop_without_viewers()

    def _push(self, packet: Packet) -> None:
        for queue in self._queues:
            queue.push(packet)
        self._stop_without_viewers()

    def _stop_without_viewers(self) -> None:
        if not self._queues and self._scope is not None:
            self._scope.cancel()

    # -- the encoder --------------------------------------------------------------

    async def _run(self) -> None:
        """While somebody watches: one FFmpeg after the other, one for each picture."""
        try:
            while self._queues:
                self._current = _Run(self._push)
                with anyio.CancelScope() as self._scope:
                    await self._encode(self._current)
        except (StreamBroken, IncompleteReceive, OSError) as error:
            log.error("H.264 is not encoded: %s", error)
        finally:
            self._running = False
            self._current = _Run(self._push)
            for queue in self._queues:
                queue.end()
            self._queues.clear()

    async def _encode(self, run: _Run) -> None:
        """Run one FFmpeg until the picture changes.

        Raises:
            StreamBroken, IncompleteReceive, OSError: FFmpeg ended, or cannot begin.
        """
        with ChildPipes() as pipes, contextlib.ExitStack() as undo:
            read_fd, writer = pipes.into(SendStream, "reads")
            client = self._hub.attach(
                writer, policy="latest", encode=run.feed, on_event=run.on_event
            )
            undo.callback(client.detach)
            # The first frame, which the hub may have already, says what picture it is.
            await first_to_end(client.wait_closed, run.begun.wait)
            if run.picture is None:
                raise StreamBroken(f"no frame: {client.error}")
            argv = ffmpeg_command(self._ffmpeg, run.picture)
            async with open_process(
                argv, stdin=read_fd, stdout=True, env=binary.environment()
            ) as ffmpeg:
                try:
                    distribute = partial(self._distribute, run, ffmpeg)
                    await first_to_end(distribute, run.changed.wait)
                finally:
                    ffmpeg.kill()  # nobody needs the frames inside of it
        if run.failure:
            raise OSError(run.failure)

    async def _distribute(self, run: _Run, ffmpeg: Process) -> None:
        """Give FFmpeg's packets to all queues; its end is a failure."""
        stdout = ffmpeg.stdout
        assert stdout is not None
        try:
            await stdout.receive_exactly(bytearray(_FLV_HEADER))
            while True:
                run.take(await _next_tag(stdout))
        except (IncompleteReceive, anyio.EndOfStream):
            run.failure = f"FFmpeg ended: {ffmpeg.stderr_tail.strip() or 'in silence'}"


async def _next_tag(stdout: ReceiveStream) -> memoryview:
    """The next video tag's content; others are skipped."""
    header = bytearray(_TAG_HEADER)
    while True:
        await stdout.receive_exactly(header)
        size = int.from_bytes(header[1:4], "big")
        content = bytearray(size + _TAG_END)
        await stdout.receive_exactly(content)
        if header[0] == _VIDEO and size >= _AVC_PREFIX:
            return memoryview(content)[:size]
