"""Packets of H.264 that wait for one viewer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.web.fit import Fit
from aiozerocopy.web.link import LATE
from aiozerocopy.web.pixels import H264, H264_CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy.web.h264 import Rendition
    from aiozerocopy.web.link import Link


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
        self.fit: Fit = Fit(link)
        self._link = link
        self._renditions = renditions
        self._rendition = renditions[0]
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
            self._key_nbytes = 0  # not known of this one
            self._drop_all()

    def end(self, of: Rendition) -> None:
        """Note that a rendition is over: go on with another one, if one works.

        (A viewer that has had no picture goes from the first to none.)
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
            is_late = self._link.clock() - self._since > LATE
            first = next(iter(self._pictures))
            # (a key frame that is there anyway is the probe of all who are due soon)
            share = 0.5 if first.key else 1.0
            if is_late or not self._link.takes(first.nbytes, share):
                self._drop_all()
                self._fall()
        self._change.happen()

    def _fall(self) -> None:
        """Get fewer bits, if the link is too slow for these."""
        carried = self.fit.fall()
        if carried == 1 or self._rendition.give_way(carried):
            return
        fitting = self._renditions[self.fit.number]
        if fitting is self._rendition or fitting.has_failed:
            self.fit.move_down()

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
