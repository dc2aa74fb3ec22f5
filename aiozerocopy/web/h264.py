"""H.264 for the viewers whose browser decodes it: an FFmpeg for each of two renditions.

How a frame travels
    hub -> a pipe of ours -> FFmpeg (libx264, no delay: one frame in, one packet out)
        -> FLV, whose packets tell their size before they come -> `Packet`, made once
        -> a `PacketQueue` for each viewer, which begins with a key frame

A viewer gets the first rendition, or the second if that fits its link: see `fit`.  It
moves between two pictures, and goes on with a key frame of the other one.

FFmpeg runs while somebody watches its rendition, and is started anew when the picture's
size changes.  If one fails, its viewers go on with the other, unless that has failed in
the last minute, too: then they hear that this way to watch does not work, as do those
who come when the first fails.  A frame that cannot be shown does not reach FFmpeg:
viewers get the reason.

Key frames are made on demand: for a new viewer, and for one that has lost frames.  A
pipe has no way to ask for one, so the frame itself asks: frames travel in Matroska, and
an odd timestamp means a key frame.  So none is made without need, as it is several
times as long as the others; a restart would cost every viewer 0.1 seconds of frames,
and short groups, or refreshing in stripes, would cost bits all the time.  If no frame
comes to carry the wish, the newest is encoded once more: a still picture has new
viewers, too.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.ffmpeg import binary
from aiozerocopy.process import open_process
from aiozerocopy.streams import SendStream
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.fit import Fit
from aiozerocopy.web.link import LATE
from aiozerocopy.web.matroska import film_of, head_of
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

    from aiozerocopy.broadcast import Broadcast, Client, Published
    from aiozerocopy.process import Process
    from aiozerocopy.streams import ReceiveStream
    from aiozerocopy.web.link import Link
    from aiozerocopy.web.pixels import PictureFormat

FRAME_MS = 32  # from one frame to the next, for FFmpeg; even, see `_Run.feed`
KEYS, KEY_SECONDS = 2, 0.5  # all viewers together get at most 2 key frames in 0.5 s
HOLD_SECONDS = 0.05  # that a wish waits for a new frame to go with
# Until those who move may try a rendition again that has failed, or has just begun.
FAILED_SECONDS, RESTART_SECONDS = 60.0, 5.0
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
_LAST_FRAME = (1 << 31) // FRAME_MS - 1  # by FLV's timestamps


def ffmpeg_if_any() -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return binary.find_ffmpeg()
    return None


def bitrate(width: int, height: int) -> int:
    """Bits a second: 8 million for 1920x1080, less in proportion to the sides."""
    part = math.sqrt(width * height / (1920 * 1080))
    return round(min(max(part * MAX_BITRATE, MIN_BITRATE), MAX_BITRATE))


def ffmpeg_command(ffmpeg: str, picture: PictureFormat, share: float) -> list[str]:
    """How FFmpeg is called: Matroska with this picture on stdin, FLV on stdout."""
    rate = round(share * bitrate(picture.width, picture.height))
    return [
        *(ffmpeg, "-hide_banner", "-nostats", "-loglevel", "error"),
        *("-f", "matroska", "-fflags", "nobuffer"),
        *("-probesize", "32", "-analyzeduration", "0", "-i", "pipe:0"),
        *("-vf", _FILTERS.format(yuv=_YUV if picture.form.is_yuv else "")),
        *("-colorspace", "bt709", "-color_primaries", "bt709"),
        *("-color_trc", "bt709", "-color_range", "tv"),
        *("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency"),
        # (0.1 s: a key frame is no longer than three or four of the others)
        *("-b:v", str(rate), "-maxrate", str(rate), "-bufsize", str(rate // 10)),
        *("-enc_time_base", "1:1000", "-force_key_frames", "expr:mod(round(t*1000),2)"),
        *("-f", "flv", "-flvflags", "no_duration_filesize", "-flush_packets", "1"),
        "pipe:1",
    ]


@dataclass(frozen=True)
class Packet:
    """One message for the viewers, shared by all."""

    buffers: Sequence[Buffer]
    kind: int  # of its payload: see `pixels`
    key: bool
    sequence: int

    @property
    def nbytes(self) -> int:
        return sum(len(memoryview(buffer)) for buffer in self.buffers)

    @property
    def is_picture(self) -> bool:
        return self.kind == H264


class PacketQueue:
    """Packets that wait for one viewer, as long as its `Link` lets them be new.

    Pictures that would come too late are dropped.  The viewer goes on at a key frame,
    which the rendition is asked for once it would be sent at once and arrive in time.

    Raises:
        StreamClosed: the hub is closed.
        RuntimeError: it is not entered.
    """

    def __init__(self, link: Link, renditions: Sequence[Rendition]) -> None:
        self.dropped: int = 0  # pictures
        self._link = link
        self._renditions = renditions
        self._rendition = renditions[0]
        self._fit = Fit(link)
        self._newest = -1  # sequence of the last picture that was sent
        link.on_change = self._look
        self._words: list[Packet] = []  # what is no picture: it goes first
        self._pictures: FrameQueue[Packet] = FrameQueue()
        self._since = 0.0  # when the oldest picture came
        self._key_nbytes = 0  # of the last key frame
        self._ended = False
        self._change = Change()
        self._rendition.join(self)

    def push(self, packet: Packet) -> None:
        if packet.kind == H264_CONFIGURATION or (packet.is_picture and packet.key):
            self._drop_all()  # what waits is of no use any more
        if not packet.is_picture:
            self._words = [each for each in self._words if each.kind != packet.kind]
            self._words.append(packet)
        elif packet.sequence >= self._newest and self._pictures.accepts(packet):
            if packet.key:
                self._key_nbytes = packet.nbytes
            if not self._pictures:
                self._since = self._link.clock()
            self._pictures.append(packet)
        else:
            self.dropped += 1
        self._look()
        if packet.is_picture:
            self._fit.see(packet.nbytes)
            fitting = self._renditions[self._fit.number]
            if fitting.may_be_tried:
                self._move(fitting)

    def _move(self, to: Rendition) -> None:
        """Go on with another rendition, unless the hub is closed."""
        if to is not self._rendition:
            with contextlib.suppress(StreamClosed):
                to.join(self)
                before, self._rendition = self._rendition, to
                before.leave(self)
                self._key_nbytes = 0  # not known of this one
                self._drop_all()

    def end(self, of: Rendition) -> None:
        """Note that a rendition is over: go on with the other one, if that works.

        (A viewer that has had no picture goes from the first to none.)
        """
        first, second = self._renditions
        stays = of is first and (not of.has_failed or self._newest < 0)
        if not stays and (of is second or not second.has_failed):
            self._move(second if of is first else first)
        self._ended = self._rendition is of
        self._change.happen()

    def leave(self) -> None:
        self._rendition.leave(self)

    def _look(self) -> None:
        """Drop what waits if it is late."""
        if self._pictures:
            is_late = self._link.clock() - self._since > LATE
            first = next(iter(self._pictures))
            # (a key frame that is there anyway is the probe of all who are due soon)
            share = 0.5 if first.key else 1.0
            if is_late or not self._link.takes(first.nbytes, share):
                self._drop_all()
                self._fit.fall()
        self._change.happen()

    def _drop_all(self) -> None:
        self.dropped += len(self._pictures.drop_to(0))
        self._pictures.needs_key = True

    async def next(self) -> Packet | None:
        """The next packet, which is to be sent now; None at the end."""
        while not self._words:
            self._look()
            if self._pictures:
                packet = self._pictures.pop()
                self._since = self._link.clock()
                self._newest = packet.sequence
                self._link.send(packet.sequence, packet.nbytes)
                return packet
            if self._ended:
                return None
            if self._pictures.needs_key and self._link.takes(self._key_nbytes):
                self._rendition.ask()
            await self._change.next()
        return self._words.pop(0)


class _Run:
    """One FFmpeg: the picture it was started for, and the frames inside of it."""

    def __init__(self, tell: Callable[[Packet], object]) -> None:
        self.picture: PictureFormat | None = None
        self.begun = anyio.Event()  # the picture is known
        self.changed = anyio.Event()  # it is another one now
        self.wishes = Change()  # for a key frame
        self.failure = ""
        self.sequence = -1  # of the newest frame that was fed
        self._tell = tell  # sends a packet to all viewers
        self._wants_key = False
        # When the last key frames were fed, and the number of the very last.
        self._keys_at = collections.deque([-math.inf] * KEYS, KEYS)
        self._key_number = 0
        self._configuration: list[Packet] = []
        self._reason: list[Packet] = []  # why the newest frame cannot be shown
        self._frames = 0  # that were fed
        # Those that may still come out, by their number: sequence and timestamp.
        self._inside: dict[int, tuple[int, int]] = {}

    def ask(self) -> None:
        """Make the next frame a key frame, unless one is about to come out."""
        if self._key_number not in self._inside:
            self._wants_key = True
            self.wishes.happen()

    @property
    def wants_key(self) -> bool:
        """Is one to be made now?"""
        is_due = time.monotonic() - self._keys_at[0] >= KEY_SECONDS
        return self._wants_key and is_due and not self._reason

    def feed(self, frame: Published) -> Sequence[Buffer]:
        """What FFmpeg gets of a frame: Matroska, or nothing.

        Raises: ValueError, which ends the hub's client, if it is another picture.
        """
        try:
            picture = picture_format(frame)
        except UnknownPicture as reason:
            message, sequence = reason_message(frame, reason), frame.sequence
            packet = Packet(message, REASON, key=False, sequence=sequence)
            self._reason = [packet]
            self._tell(packet)
            return (b"",)
        self._reason = []
        view = frame.view
        begin: list[Buffer] = []
        if self.picture is None:
            self.picture = picture
            self.begun.set()
            # (what comes out of FFmpeg begins with the second)
            begin = [film_of(picture, FRAME_MS) + head_of(view.nbytes, 0), view]
            self._frames = 1
        elif self.picture != picture or self._frames > _LAST_FRAME:
            self.changed.set()
            raise ValueError(f"the picture is {picture} now")
        # The first one out is a key frame anyway; FFmpeg counts from its timestamp.
        is_key, number = self.wants_key and self._frames > 1, self._frames
        if is_key or number == 1:
            self._wants_key, self._key_number = False, number
            self._keys_at.append(time.monotonic())
        self._inside[number] = frame.sequence, frame.timestamp_ns
        self._frames, self.sequence = number + 1, frame.sequence
        return (*begin, head_of(view.nbytes, number * FRAME_MS + is_key), view)

    def take(self, timestamp: int, tag: memoryview) -> None:
        """Send the packet that is in a tag of FFmpeg's."""
        picture, prefix, payload = self.picture, tag[:_AVC_PREFIX], tag[_AVC_PREFIX:]
        assert picture is not None
        if prefix[1] == 0:
            kind = H264_CONFIGURATION
            message = websocket_message(payload, kind, picture, 0, 0, key=True)
            packet = Packet(message, kind, key=True, sequence=0)
            self._configuration = [packet]
            self._tell(packet)
        number = timestamp // FRAME_MS
        if prefix[1] == 1 and number in self._inside:
            sequence, when = self._inside[number]
            for older in [each for each in self._inside if each <= number]:
                del self._inside[older]
            key = prefix[0] >> 4 == 1
            named = picture, sequence, when
            message = websocket_message(payload, H264, *named, key=key)
            self._tell(Packet(message, H264, key, sequence))

    def packets_so_far(self) -> list[Packet]:
        """What a newcomer needs to decode what follows."""
        return [*self._configuration, *self._reason]


class Rendition:
    """An encoder with this share of the bits, and the queues of its viewers."""

    def __init__(self, hub: Broadcast, ffmpeg: str, share: float) -> None:
        self._failed_at = self._begun_at = -math.inf  # FFmpeg, the last time
        self._hub = hub
        self._ffmpeg = ffmpeg
        self._share = share
        # Weak: a queue that a signal's exception leaves here ends with its task.
        self._queues: WeakSet[PacketQueue] = WeakSet()
        self._running = False
        self._scope: anyio.CancelScope | None = None
        self._current = _Run(self._push)

    # -- viewers ------------------------------------------------------------------

    def join(self, queue: PacketQueue) -> None:
        """Push packets to a queue, from a key frame on.

        Raises: StreamClosed, RuntimeError.
        """
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

    @property
    def has_failed(self) -> bool:
        return time.monotonic() - self._failed_at < FAILED_SECONDS

    @property
    def may_be_tried(self) -> bool:
        """By those who move: however many do, few FFmpegs are started."""
        is_soon = time.monotonic() - self._begun_at < RESTART_SECONDS
        return not self.has_failed and (bool(self._queues) or not is_soon)

    def leave(self, queue: PacketQueue) -> None:
        self._queues.discard(queue)
        self._stop_without_viewers()

    def ask(self) -> None:
        """Make a key frame soon."""
        self._current.ask()

    def _push(self, packet: Packet) -> None:
        if packet.is_picture:
            self._failed_at = -math.inf
        for queue in tuple(self._queues):  # (some move to the other rendition)
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
                self._begun_at = time.monotonic()
                self._current = _Run(self._push)
                with anyio.CancelScope() as self._scope:
                    await self._encode(self._current)
        except StreamClosed:
            pass  # the hub is closed
        except (StreamBroken, IncompleteReceive, OSError) as error:
            self._failed_at = time.monotonic()
            log.error("H.264 (%.0f %%) is not encoded: %s", 100 * self._share, error)
        finally:
            self._running = False
            self._current = _Run(self._push)
            for queue in tuple(self._queues):
                queue.end(self)
            self._queues.clear()

    async def _encode(self, run: _Run) -> None:
        """Run one FFmpeg until the picture changes.

        Raises:
            StreamBroken, IncompleteReceive, OSError: FFmpeg ended, or cannot begin.
        """
        with ChildPipes() as pipes, contextlib.ExitStack() as undo:
            read_fd, writer = pipes.into(SendStream, "reads")
            client = self._hub.attach(writer, policy="latest", encode=run.feed)
            undo.callback(client.detach)
            # The first frame, which the hub may have already, says what picture it is.
            await first_to_end(client.wait_closed, run.begun.wait)
            if run.picture is None:
                raise StreamBroken(f"no frame: {client.error}")
            argv = ffmpeg_command(self._ffmpeg, run.picture, self._share)
            async with open_process(
                argv, stdin=read_fd, stdout=True, env=binary.environment()
            ) as ffmpeg:
                try:
                    distribute = partial(self._distribute, run, ffmpeg)
                    repeat = partial(self._repeat, run, client, writer)
                    await first_to_end(distribute, repeat, run.changed.wait)
                finally:
                    ffmpeg.kill()  # nobody needs the frames inside of it
        if run.failure:
            raise OSError(run.failure)

    async def _repeat(self, run: _Run, client: Client, writer: SendStream) -> None:
        """Encode the newest frame again if a key frame is wanted and no frame comes."""
        while True:
            if not run._wants_key:
                await run.wishes.next()
            await anyio.sleep(HOLD_SECONDS)
            frame = self._hub._last
            try:
                if frame is None or frame.sequence != run.sequence:
                    continue
                if run.wants_key and not client.stats.queued:  # (no newer one comes)
                    await writer.send(*run.feed(frame))
            except ValueError:  # its timestamps have come to their end
                return
            finally:
                frame = None  # or it was the pool's again only after the next wish

    async def _distribute(self, run: _Run, ffmpeg: Process) -> None:
        """Give FFmpeg's packets to all queues; its end is a failure."""
        stdout = ffmpeg.stdout
        assert stdout is not None
        try:
            await stdout.receive_exactly(bytearray(_FLV_HEADER))
            while True:
                run.take(*await _next_tag(stdout))
        except (IncompleteReceive, anyio.EndOfStream):
            run.failure = f"FFmpeg ended: {ffmpeg.stderr_tail.strip() or 'in silence'}"


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
