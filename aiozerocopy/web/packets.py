"""The queue of H.264 packets that wait for one viewer."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy._core.change import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


@dataclass(frozen=True)
class Packet:
    """One message for the viewers, shared by all."""

    buffers: Sequence[Buffer]
    nbytes: int
    is_picture: bool
    is_key: bool


class PacketQueue:
    """Packets that wait for one viewer; too many, and it goes on at a key frame."""

    def __init__(self, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._packets: collections.deque[Packet] = collections.deque()
        self._needs_key = True
        self._ended = False
        self._change = Change()

    def push(self, packet: Packet) -> None:
        if not packet.is_picture:
            self._packets.append(packet)
        elif self._needs_key and not packet.is_key:
            self.dropped += 1
        else:
            self._needs_key = False
            self._packets.append(packet)
        if len(self._packets) > self._limit:
            self._skip()
        self._change.happen()

    def _skip(self) -> None:
        """Forget all but the newest configuration, and wait for a key frame."""
        configurations = [packet for packet in self._packets if not packet.is_picture]
        self.dropped += len(self._packets) - len(configurations)
        self._packets = collections.deque(configurations[-1:])
        self._needs_key = True

    def end(self) -> None:
        self._ended = True
        self._change.happen()

    async def next(self) -> Packet | None:
        """The next packet; None at the end."""
        while not self._packets:
            if self._ended:
                return None
            await self._change.next()
        return self._packets.popleft()
