"""A ring as a byte stream, for whatever takes one of anyio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.abc import ByteReceiveStream, ByteSendStream

if TYPE_CHECKING:
    from aiozerocopy.shm.records import Record
    from aiozerocopy.shm.ring import Ring

RECEIVE_SIZE = 64 << 10


class RingSendStream(ByteSendStream):
    """The sending side: what is big goes as several records."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._piece = min(ring.largest, ring.capacity // 4)

    async def send(self, item: bytes) -> None:
        """Send bytes; if it is cancelled, some of them may have been sent.

        Raises: as `Ring.send`.
        """
        view = memoryview(item).cast("B")
        for start in range(0, len(view), self._piece):
            await self._ring.send(view[start : start + self._piece])

    async def aclose(self) -> None:
        await self._ring.aclose()


class RingReceiveStream(ByteReceiveStream):
    """The receiving side: records, one after the other."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._record: Record | None = None  # of which there is some left
        self._at = 0

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.

        Raises: as `Ring.receive`.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, not {max_bytes}")
        while self._record is None or self._at >= len(self._record):
            self._record, self._at = None, 0
            self._record = await self._ring.receive()
        piece = bytes(self._record.view[self._at : self._at + max_bytes])
        self._at += len(piece)
        if self._at == len(self._record):
            self._record, self._at = None, 0
        return piece

    async def aclose(self) -> None:
        await self._ring.aclose()
