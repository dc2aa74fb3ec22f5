"""H.264 or AV1 for viewers whose browser decodes it, in up to three renditions.

How a frame travels
    hub -> `Planes`, converted once -> each rendition's `Run`, which takes the newest
        when it is done with the last -> its encoder -> `Packet`, made once
        -> a `PacketQueue` for each viewer, which begins with a key frame

Renditions encode a frame one after the other, the first one first, so that the others
do not delay its viewers.

A viewer gets the first rendition, or one with fewer bits if that fits its link: see
`fit`.  It moves between two pictures, and begins the other rendition with a key frame.

An encoder runs while somebody watches its rendition.  Another encoder is started when
the picture's size changes, and when the bitrate does, if the running one cannot change
that.  If an encoder fails, its viewers go on with another rendition.  If all have
failed in the last minute, or the first one fails before a viewer has a picture, the
viewer hears that its mode does not work.  For a few seconds newcomers hear the same,
and no other encoder is started for them.  A frame that cannot be shown does not reach
an encoder: viewers get the reason.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.web.codecs import Task
from aiozerocopy.web.encoding import Packet, Run
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.fit import ENOUGH, HALVED, NEARLY, SHARES, Fit, Rate
from aiozerocopy.web.link import LATE
from aiozerocopy.web.pixels import CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.codecs import Codec, Encoders
    from aiozerocopy.web.link import Link
    from aiozerocopy.web.pixels import PictureFormat
    from aiozerocopy.web.planes import Planes

# Viewers do not move to a rendition for FAILED_SECONDS after it has failed, nor for
# RESTART_SECONDS after its encoder was started if it has no viewers any more.
# Newcomers start the first one again RESTART_SECONDS after it failed.
FAILED_SECONDS, RESTART_SECONDS = 60.0, 5.0
MIN_BITRATE, MAX_BITRATE = 2_000_000, 8_000_000  # bits a second, of the first rendition

log: logging.Logger = logging.getLogger("aiozerocopy")


def bitrate(width: int, height: int) -> int:
    """Bits a second: 8 million for 1920x1080, less in proportion to the sides."""
    part = math.sqrt(width * height / (1920 * 1080))
    return round(min(max(part * MAX_BITRATE, MIN_BITRATE), MAX_BITRATE))


def make_renditions(
    hub: Broadcast, planes: Planes, encoders: Encoders, codec: Codec
) -> list[Rendition]:
    """Return all renditions, which share the conversion of the frames."""
    made: list[Rendition] = []
    for _ in SHARES:
        made.append(Rendition(hub, planes, encoders, codec, made.copy()))
    return made


class PacketQueue:
    """Packets that wait for one viewer, while its `Link` can deliver them in time.

    Pictures that would come too late are dropped.  The viewer goes on at a key frame,
    which the rendition is asked for as soon as it could be sent and arrive in time.

    Raises:
        StreamClosed: the hub is closed.
        RuntimeError: the hub is not entered.
    """

    def __init__(self, link: Link, renditions: Sequence[Rendition]) -> None:
        self.dropped: int = 0  # pictures
        self.fit: Fit = Fit(link)
        self._link = link
        self._renditions = renditions
        self._rendition = renditions[0]
        self._newest = -1  # sequence of the last picture that was sent
        link.on_change = self._look
        self._words: list[Packet] = []  # not pictures: they go first
        self._pictures: FrameQueue[Packet] = FrameQueue()
        self._came = collections.deque[float]()  # when each of these came
        self._key_nbytes = 0  # of the last key frame
        self._ended = False
        self._change = Change()
        self._rendition.join(self)

    def push(self, packet: Packet) -> None:
        if packet.kind == CONFIGURATION or (packet.is_picture and packet.key):
            self._drop_all()  # what waits is of no use any more
        if not packet.is_picture:
            self._words = [each for each in self._words if each.kind != packet.kind]
            self._words.append(packet)
        elif packet.sequence >= self._newest and self._pictures.accepts(packet):
            if packet.key:
                self._key_nbytes = packet.nbytes
            self._pictures.append(packet)
            self._came.append(self._link.clock())
        else:
            self.dropped += 1
        self._look()
        if packet.is_picture:
            self.fit.see(packet.nbytes)
            fitting = self._renditions[self.fit.number]
            if fitting is not self._rendition and fitting.may_be_tried:
                self._move(fitting)

    def _move(self, to: Rendition) -> None:
        """Go on with another rendition, unless the hub is closed."""
        with contextlib.suppress(StreamClosed):
            to.join(self)
            before, self._rendition = self._rendition, to
            before.leave(self)
            self._key_nbytes = 0  # not known of the new one
            self._drop_all()

    def end(self, of: Rendition) -> None:
        """Note that a rendition is over: go on with another one, if one works.

        (If the first fails, a viewer that has had no picture gets no other rendition.)
        """
        first = self._renditions[0]
        stays = of is first and (not of.has_failed or self._newest < 0)
        others = [
            each for each in self._renditions if each is not of and not each.has_failed
        ]
        if self._rendition is of and others and not stays:
            self._move(others[0])
        self._ended = self._rendition is of
        self._change.happen()

    def leave(self) -> None:
        self._rendition.leave(self)

    def _look(self) -> None:
        """Drop what waits if it is late."""
        if self._pictures:
            is_late = self._link.clock() - self._came[0] > LATE
            first = next(iter(self._pictures))
            # (an existing key frame is the probe of every viewer that is due soon)
            share = 0.5 if first.key else 1.0
            if is_late or not self._link.takes(first.nbytes, share):
                self._drop_all()
                self._fall()
        self._change.happen()

    def _fall(self) -> None:
        """Get fewer bits, if the link is too slow for these."""
        self.fit.fall()
        if self._rendition.give_way(self.fit.carried) or self.fit.carried >= ENOUGH:
            return
        fitting = self._renditions[self.fit.number]
        if fitting is self._rendition or fitting.has_failed:
            self.fit.move_down()

    def _drop_all(self) -> None:
        self.dropped += len(self._pictures.drop_to(0))
        self._came.clear()
        self._pictures.needs_key = True

    async def next(self) -> Packet | None:
        """The next packet, which is to be sent now; None at the end."""
        while not self._words:
            self._look()
            if self._pictures:
                packet = self._pictures.pop()
                self._came.popleft()
                self._newest = packet.sequence
                self._link.send(packet.sequence, packet.nbytes)
                return packet
            if self._ended:
                return None
            if self._pictures.needs_key and self._link.takes(self._key_nbytes):
                self._rendition.ask()
            await self._change.next()
        return self._words.pop(0)


class Rendition:
    """The stream in a part of the bits, and the queues of its viewers."""

    def __init__(
        self,
        hub: Broadcast,
        planes: Planes,
        encoders: Encoders,
        codec: Codec,
        first: Sequence[Rendition],
    ) -> None:
        number = len(first)
        self._failed_at = self._begun_at = -math.inf  # when an encoder last did
        self._hub = hub
        self._planes = planes
        self._encoders = encoders
        self._codec = codec
        self._first = first  # the better renditions
        self._rate = Rate(number, time.monotonic)
        self._is_half = number >= HALVED
        # Weak: a queue that a signal's exception leaves here ends with its task.
        self._queues: WeakSet[PacketQueue] = WeakSet()
        self._running = False
        self._scope: anyio.CancelScope | None = None
        self._current = self._new_run()

    # -- viewers ------------------------------------------------------------------

    def join(self, queue: PacketQueue) -> None:
        """Push packets to a queue, from a key frame on; end it if we have just failed.

        Raises: StreamClosed, RuntimeError.
        """
        if time.monotonic() - self._failed_at < RESTART_SECONDS:
            queue.end(self)
            return
        for packet in self._current.packets_so_far():
            queue.push(packet)
        self._queues.add(queue)
        if self._rate.reset():
            self._retune()
        if not self._running:
            try:
                self._running = True
                self._hub._start_soon(self._run, self._codec.title)
            except BaseException:
                self._running = False
                self._queues.discard(queue)
                raise

    @property
    def has_failed(self) -> bool:
        return time.monotonic() - self._failed_at < FAILED_SECONDS

    @property
    def may_be_tried(self) -> bool:
        """May a viewer move here?  However many do, few encoders are started."""
        is_soon = time.monotonic() - self._begun_at < RESTART_SECONDS
        return not self.has_failed and (bool(self._queues) or not is_soon)

    def leave(self, queue: PacketQueue) -> None:
        self._queues.discard(queue)
        self._stop_without_viewers()

    def ask(self) -> None:
        """Make a key frame soon."""
        self._current.ask()

    def give_way(self, carried: float) -> bool:
        """Take only what one viewer's link carries, if no viewer's carries all."""
        queues = tuple(self._queues)
        is_needed = all(queue.fit.carried < NEARLY for queue in queues)
        if not is_needed or not self._rate.lower(carried):
            return False
        for queue in queues:
            queue.fit.settle()
        self._retune()
        return True

    def _retune(self) -> None:
        self._current.follow(self._task)

    def _task(self, picture: PictureFormat) -> Task:
        whole = self._codec.bits * bitrate(picture.width, picture.height)
        rate = self._rate.share * whole
        return Task(picture, round(rate), self._is_half)

    def _push(self, packet: Packet) -> None:
        if packet.is_picture:
            self._failed_at = -math.inf
            if self._rate.rise():
                self._retune()
        for queue in tuple(self._queues):  # (some move to another rendition)
            queue.push(packet)
        self._stop_without_viewers()

    def _stop_without_viewers(self) -> None:
        if not self._queues and self._scope is not None:
            self._scope.cancel()

    # -- the encoder --------------------------------------------------------------

    def _new_run(self) -> Run:
        return Run(self._push, self._first_runs)

    def _first_runs(self) -> Sequence[Run]:
        return [each._current for each in self._first if each._running]

    async def _run(self) -> None:
        """Run one encoder after the other while somebody watches."""
        try:
            while self._queues:
                self._begun_at = time.monotonic()
                self._current = self._new_run()
                with anyio.CancelScope() as self._scope:
                    await self._encode(self._current)
        except StreamClosed:
            pass  # the hub is closed
        except OSError as error:
            self._failed_at = time.monotonic()
            title, part = self._codec.title, 100 * self._rate.most
            log.error("%s (%.0f %%) is not encoded: %s", title, part, error)
        finally:
            self._running = False
            self._current = self._new_run()
            for queue in tuple(self._queues):
                queue.end(self)
            self._queues.clear()

    async def _encode(self, run: Run) -> None:
        """Run one encoder until another one is needed.

        Raises: OSError: it failed; StreamClosed: the hub is closed.
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
