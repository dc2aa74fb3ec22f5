"""The queue of H.264 packets that wait for one viewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy._core.change import Change
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.web.pictures import H264, H264_CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


@dataclass(frozen=True)
class Packet:
    """One message for the viewers, shared by all."""

    buffers: Sequence[Buffer]
    nbytes: int
    kind: int  # of its payload: see `pictures`
    key: bool

    @property
    def is_picture(self) -> bool:
        return self.kind == H264


class PacketQueue:
    """Packets that wait for one viewer; too many, and it goes on at a key frame."""

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
        """The newest configuration stays: the next key frame needs it."""
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
