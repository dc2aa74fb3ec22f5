"""A ring as a byte stream, for whatever takes one of anyio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.abc import ByteReceiveStream, ByteSendStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozerocopy.shm.records import Record

RECEIVE_SIZE = 64 << 10


class RingSendStream(ByteSendStream):
    """The sending side: what is big goes as several records."""

    def __init__(
        self,
        send: Callable[[memoryview], Awaitable[None]],
        aclose: Callable[[], Awaitable[None]],
        most: int,
    ) -> None:
        self._send = send
        self._aclose = aclose
        self._most = most  # bytes of a record

    async def send(self, item: bytes) -> None:
        """Send bytes; if it is cancelled, some of them may have been sent.

        Raises: as `Ring.send`.
        """
        with memoryview(item) as memory, memory.cast("B") as view:  # (an exception's
            # traceback may keep this frame, but not the buffer)
            for start in range(0, len(view), self._most):
                with view[start : start + self._most] as record:
                    await self._send(record)

    async def aclose(self) -> None:
        await self._aclose()


class RingReceiveStream(ByteReceiveStream):
    """The receiving side: records, one after the other."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Record]],
        aclose: Callable[[], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._aclose = aclose
        self._record: Record | None = None  # of which there is some left
        self._at = 0

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.

        Raises: as `Ring.receive`.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be a positive integer, not {max_bytes}")
        while self._record is None or self._at >= len(self._record):
            self._record, self._at = None, 0
            self._record = await self._receive()
        piece = bytes(self._record.view[self._at : self._at + max_bytes])
        self._at += len(piece)
        if self._at == len(self._record):
            self._record, self._at = None, 0
        return piece

    async def aclose(self) -> None:
        await self._aclose()
