"""H.264 for the viewers whose browser decodes it: up to three renditions of the stream.

How a frame travels
    hub -> `Planes`, converted once -> each rendition's run, which takes the newest when
        it is done with another -> its encoder -> `Packet`, made once
        -> a `PacketQueue` for each viewer, which begins with a key frame

A viewer gets the first rendition, or one with fewer bits if that fits its link: see
`fit`.  It moves between two pictures, and goes on with a key frame of the other one.

An encoder runs while somebody watches its rendition.  Another one is started when the
picture's size changes, and when the bitrate does, if the encoder cannot change that
itself.  If one fails, its viewers go on with another rendition, unless all have failed
in the last minute: then they hear that this way to watch does not work, as do those who
come when the first fails.  A frame that cannot be shown does not reach an encoder:
viewers get the reason.

Key frames are made on demand: for a new viewer, and for one that has lost frames.  So
none is made without need, as it is several times as long as the others; a restart would
cost every viewer 0.1 seconds of frames, and short groups, or refreshing in stripes,
would cost bits all the time.  If no frame comes to carry the wish, the newest one is
encoded once more: a still picture has new viewers, too.
"""

from __future__ import annotations

import collections
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio

from aiozerocopy._core.change import Change, Turns, in_turn
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._net.foreign_streams import MessageStream
from aiozerocopy.web.encoders import Task
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.fit import HALVED, SHARES, Rate
from aiozerocopy.web.packets import Packet
from aiozerocopy.web.pixels import (
    H264,
    H264_CONFIGURATION,
    REASON,
    Header,
    websocket_message,
)
from aiozerocopy.web.planes import Planes

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.encoders import Encoder, Encoders, Made
    from aiozerocopy.web.packets import PacketQueue
    from aiozerocopy.web.pixels import PictureFormat

KEYS, KEY_SECONDS = 2, 0.5  # all viewers together get at most 2 key frames in 0.5 s
HOLD_SECONDS = 0.05  # that a wish waits for a new frame to go with
# Until those who move may try a rendition again that has failed, or has just begun.
FAILED_SECONDS, RESTART_SECONDS = 60.0, 5.0
MIN_BITRATE, MAX_BITRATE = 2_000_000, 8_000_000  # bits a second, of the first rendition

log: logging.Logger = logging.getLogger("aiozerocopy")


def bitrate(width: int, height: int) -> int:
    """Bits a second: 8 million for 1920x1080, less in proportion to the sides."""
    part = math.sqrt(width * height / (1920 * 1080))
    return round(min(max(part * MAX_BITRATE, MIN_BITRATE), MAX_BITRATE))


def renditions(hub: Broadcast, encoders: Encoders) -> list[Rendition]:
    """All there can be; they share the conversion of the frames."""
    planes = Planes()
    return [Rendition(hub, planes, encoders, number) for number in range(len(SHARES))]


class _Run(MessageStream):
    """One encoder: the picture it was started for, and the frames inside of it.

    It is the stream of a hub's client, which sends it the messages of `Planes`.
    """

    def __init__(self, tell: Callable[[Packet], object]) -> None:
        self.picture: PictureFormat | None = None
        self.begun = anyio.Event()  # the picture is known
        self.changed = anyio.Event()  # another encoder is needed
        self.failure = ""
        self._tell = tell  # sends a packet to all viewers
        self._encoder: Encoder | None = None
        self._ready = anyio.Event()  # there is an encoder
        self._turns = Turns()
        self._newest: tuple[Header, Buffer] | None = None  # with planes
        self._wishes = Change()  # for a key frame
        self._wants_key = False
        # When the last key frames were encoded, and the number of the very last.
        self._keys_at = collections.deque([-math.inf] * KEYS, KEYS)
        self._key_number = 0
        self._configuration: list[Packet] = []
        self._reason: list[Packet] = []  # why the newest frame cannot be shown
        self._frames = 0  # that were encoded
        # Those that may still come out, by their number: sequence and timestamp.
        self._inside: dict[int, tuple[int, int]] = {}

    def ask(self) -> None:
        """Make the next frame a key frame, unless one is about to come out."""
        if self._key_number not in self._inside:
            self._wants_key = True
            self._wishes.happen()

    def _is_key_due(self) -> bool:
        is_due = time.monotonic() - self._keys_at[0] >= KEY_SECONDS
        return self._wants_key and is_due and not self._reason

    # -- frames --------------------------------------------------------------------

    async def aclose(self) -> None:
        """Nothing to do: the run is over when its task is."""

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Encode a message of `Planes`."""
        header = Header.of(item)
        if header.kind == REASON:
            packet = Packet((item, *more), REASON, key=False, sequence=header.sequence)
            self._reason = [packet]
            self._tell(packet)
            return
        self._reason = []
        if self.picture is None:
            self.picture = header.picture
            self.begun.set()
        if self.picture == header.picture:
            self._newest = header, more[0]
            await self._ready.wait()
            await self._encode()
        else:
            self.changed.set()

    @in_turn
    async def _encode(self, *, if_wanted: bool = False) -> None:
        """Encode the newest frame, perhaps only if a key frame is wanted of it."""
        assert self._encoder is not None
        assert self._newest is not None
        (header, planes), number = self._newest, self._frames
        is_key = number == 0 or self._is_key_due()
        if if_wanted and not is_key:
            return
        if number > self._encoder.last:
            self.changed.set()
            return
        if is_key:
            self._wants_key, self._key_number = False, number
            self._keys_at.append(time.monotonic())
        self._inside[number] = header.sequence, header.timestamp_ns
        self._frames = number + 1
        try:
            await self._encoder.encode(planes, number, is_key=is_key)
        except OSError as error:
            self.failure = str(error)
            self.changed.set()

    async def _repeat(self) -> None:
        """Encode the newest frame again if a key frame is wanted and no frame comes."""
        while True:
            if not self._wants_key:
                await self._wishes.next()
            await anyio.sleep(HOLD_SECONDS)
            await self._encode(if_wanted=True)

    def _take(self, made: Made) -> None:
        """Send to the viewers what the encoder has made."""
        assert self.picture is not None
        number, key, payload = made
        if number < 0:
            kind = H264_CONFIGURATION
            message = websocket_message(payload, kind, self.picture, 0, 0, key=True)
            self._configuration = [Packet(message, kind, key=True, sequence=0)]
            self._tell(self._configuration[0])
        elif number in self._inside:
            sequence, when = self._inside[number]
            for older in [each for each in self._inside if each <= number]:
                del self._inside[older]
            named = self.picture, sequence, when
            message = websocket_message(payload, H264, *named, key=key)
            self._tell(Packet(message, H264, key, sequence))

    def packets_so_far(self) -> list[Packet]:
        """What a newcomer needs to decode what follows."""
        return [*self._configuration, *self._reason]

    # -- the encoder ---------------------------------------------------------------

    async def serve(
        self, encoders: Encoders, task: Callable[[PictureFormat], Task]
    ) -> None:
        """Run an encoder, until it ends or another one is needed."""
        await self.begun.wait()
        assert self.picture is not None
        try:
            async with encoders(task(self.picture), self._take) as self._encoder:
                self._ready.set()
                await first_to_end(self._watch, self._repeat, self.changed.wait)
        except OSError as error:
            self.failure = str(error)

    async def _watch(self) -> None:
        assert self._encoder is not None
        self.failure = await self._encoder.wait()

    def follow(self, task: Callable[[PictureFormat], Task]) -> None:
        """Encode with another bitrate from now on."""
        encoder, picture = self._encoder, self.picture
        if encoder and picture and not encoder.follow(task(picture).bitrate):
            self.changed.set()


class Rendition:
    """The stream in a part of the bits, and the queues of its viewers."""

    def __init__(
        self, hub: Broadcast, planes: Planes, encoders: Encoders, number: int
    ) -> None:
        self._failed_at = self._begun_at = -math.inf  # the encoder, the last time
        self._hub = hub
        self._planes = planes
        self._encoders = encoders
        self._most = SHARES[number]
        self._rate = Rate(number, time.monotonic)
        self._is_half = number >= HALVED
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
        self._retune(self._rate.reset())
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
        """By those who move: however many do, few encoders are started."""
        is_soon = time.monotonic() - self._begun_at < RESTART_SECONDS
        return not self.has_failed and (bool(self._queues) or not is_soon)

    def leave(self, queue: PacketQueue) -> None:
        self._queues.discard(queue)
        self._stop_without_viewers()

    def ask(self) -> None:
        """Make a key frame soon."""
        self._current.ask()

    def give_way(self, carried: float) -> bool:
        """Take fewer bits if all viewers are slow, one of which gets only this part."""
        queues = tuple(self._queues)
        if not all(queue.fit.is_slow for queue in queues):
            return False
        if not self._rate.lower(carried):
            return False
        for queue in queues:
            queue.fit.settle()
        self._retune()
        return True

    def _retune(self, is_needed: bool = True) -> None:
        if is_needed:
            self._current.follow(self._task)

    def _task(self, picture: PictureFormat) -> Task:
        rate = self._rate.share * bitrate(picture.width, picture.height)
        return Task(picture, round(rate), self._is_half)

    def _push(self, packet: Packet) -> None:
        if packet.is_picture:
            self._failed_at = -math.inf
            self._retune(self._rate.rise())
        for queue in tuple(self._queues):  # (some move to another rendition)
            queue.push(packet)
        self._stop_without_viewers()

    def _stop_without_viewers(self) -> None:
        if not self._queues and self._scope is not None:
            self._scope.cancel()

    # -- the encoder --------------------------------------------------------------

    async def _run(self) -> None:
        """While somebody watches: one encoder after the other, one for each picture."""
        try:
            while self._queues:
                self._begun_at = time.monotonic()
                self._current = _Run(self._push)
                with anyio.CancelScope() as self._scope:
                    await self._encode(self._current)
        except StreamClosed:
            pass  # the hub is closed
        except OSError as error:
            self._failed_at = time.monotonic()
            log.error("H.264 (%.0f %%) is not encoded: %s", 100 * self._most, error)
        finally:
            self._running = False
            self._current = _Run(self._push)
            for queue in tuple(self._queues):
                queue.end(self)
            self._queues.clear()

    async def _encode(self, run: _Run) -> None:
        """Run one encoder until the picture changes.

        Raises: OSError, StreamClosed: it ended, or cannot begin; or the hub is closed.
        """
        client = self._hub.attach(run, policy="latest", encode=self._planes.message)
        try:
            serve = partial(run.serve, self._encoders, self._task)
            is_over = await first_to_end(client.wait_closed, serve) == 0
        finally:
            client.detach()
        if is_over and client.error:
            raise StreamBroken(f"no frame: {client.error}")
        if run.failure:
            raise OSError(run.failure)
