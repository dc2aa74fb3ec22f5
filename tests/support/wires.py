"""Two transports in memory, each what the other writes to, for what stands above them.

What is written arrives at the next turn of the loop, unless the reader has paused; a
writer is paused above 64 KiB, as on a socket whose peer does not read.
"""

import asyncio
from collections import deque
from typing import Any

HIGH = 64 << 10


class Wire(asyncio.Transport):
    """One end."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.protocol = protocol
        self.sent = bytearray()  # all that was written
        self.peer: Wire
        self._arrived: deque[bytes] = deque()
        self._limits = (HIGH // 4, HIGH)
        self._reading = True
        self._full = False
        self._closing = False
        self._lost = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self.sent += data
            self.peer._arrived.append(bytes(data))
            self.loop.call_soon(self.peer._deliver)
            if self.get_write_buffer_size() > self._limits[1] and not self._full:
                self._full = True
                self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer._lost else sum(map(len, self.peer._arrived))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        self._limits = (low or 0, high or 0)

    def _deliver(self) -> None:
        """One piece, as much of it as the protocol takes."""
        if not self._reading or self._lost or not self._arrived:
            return
        piece = self._arrived.popleft()
        if piece:
            room = self.protocol.get_buffer(-1)
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            if count < len(piece):
                self._arrived.appendleft(piece[count:])
            self.protocol.buffer_updated(count)
        elif not self.protocol.eof_received():
            self.close()
        self.loop.call_soon(self._deliver)
        self.peer._drained()

    def _drained(self) -> None:
        if self._full and self.get_write_buffer_size() <= self._limits[0]:
            self._full = False
            self.protocol.resume_writing()
        if self._closing and not self.get_write_buffer_size():
            self._lose(None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.loop.call_soon(self._deliver)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def is_closing(self) -> bool:
        return self._closing

    def end(self) -> None:
        """The end, with nothing said before."""
        self.peer._arrived.append(b"")
        self.loop.call_soon(self.peer._deliver)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.end()
            self.loop.call_soon(self._drained)

    def abort(self) -> None:
        if not self._lost:
            self.close()
            self._lose(None)

    def break_by(self, error: Exception) -> None:
        """As the kernel does it."""
        self._closing = True
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self.loop.call_soon(self.protocol.connection_lost, error)
            self.loop.call_soon(self.peer._drained)


def pair(one: Any, other: Any) -> tuple[Wire, Wire]:
    """Connect two protocols."""
    left, right = Wire(one), Wire(other)
    left.peer, right.peer = right, left
    for wire in (left, right):
        wire.loop.call_soon(wire.protocol.connection_made, wire)
    return left, right
