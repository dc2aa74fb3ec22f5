"""ReceiveStream: `receive`, `receive_into`, `receive_exactly`.

The states of a receive, and who owns the memory
    asked     (C)   borrowed: the kernel writes there when bytes come
    over            the caller
    cancelled       the caller; what had arrived by then is kept in `_unread`, and the
                    next receive begins with it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ByteReceiveStream

from aiozerocopy import _native
from aiozerocopy._bound import Bound, Stats
from aiozerocopy._errors import IncompleteReceive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy._native import Channel, Operation
    from aiozerocopy._waiter import Waiter

RECEIVE_SIZE = 64 << 10


class ReceiveStream(Bound, ByteReceiveStream):
    """The receiving end of a pipe, FIFO, file, tty or socket.

    One task at a time may receive.  A cancelled receive loses nothing: what had
    arrived is given to the next one.
    """

    def __init__(self, channel: Channel) -> None:
        Bound.__init__(self)
        self._in = channel
        self._unread = b""
        self._receiving = False

    def _channels(self) -> Sequence[Channel]:
        return (self._in,)

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.

        Raises:
            EndOfStream: there will be none.
            StreamBroken, StreamClosed: as for sending.
            BusyResourceError: another task is receiving.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, not {max_bytes}")
        memory = _native.scratch(max_bytes)
        n = await self._receive(memory, 1)
        return _native.content(memory, n)

    async def receive_into(self, buffer: Buffer) -> int:
        """Receive at least one byte straight into ``buffer``; return how many.

        Raises: as `receive`; BufferError for memory that cannot be written.
        """
        with _native.Pinned(buffer) as view:
            if len(view) == 0:
                await self._enter().checkpoint()
                return 0
            return await self._receive(view, 1)

    async def receive_exactly(self, buffer: Buffer) -> None:
        """Fill the whole ``buffer``: a NumPy array, a frame.

        Raises:
            EndOfStream: the stream ended before the first byte.
            IncompleteReceive: it ended later; its ``received`` bytes are in place.
            others: as `receive_into`.
        """
        with _native.Pinned(buffer) as view:
            total = len(view)
            if total == 0:
                await self._enter().checkpoint()
                return
            received = await self._receive(view, total)
            if received < total:
                raise IncompleteReceive(received, total)

    async def _receive(self, view: Any, need: int) -> int:
        """Fill a pinned view with at least need bytes; fewer mean the end."""
        waiter = self._enter()
        if self._receiving:
            raise anyio.BusyResourceError("receiving from")
        self._receiving = True
        try:
            # Before anything is taken, so that a cancel here loses nothing.
            if self._turn_is_over(len(view)):
                await waiter.checkpoint()
                self._enter()  # it may be closed by now
            got = self._take_unread(view)
            if got < need:
                got += await self._receive_rest(waiter, view, got, need)
        finally:
            self._receiving = False
        if got == 0:
            raise anyio.EndOfStream
        return got

    async def _receive_rest(
        self, waiter: Waiter, view: Any, got: int, need: int
    ) -> int:
        result: Operation | int = 0
        try:
            result = self._in.receive(waiter.port, view, got, need - got)
            if isinstance(result, int):
                return result
            await self._wait_for_arrival(waiter, result)
            result.raise_if_failed()
        except BaseException:
            moved = 0 if isinstance(result, int) else result.moved
            self._unread = _native.content(view, got + moved) + self._unread
            raise
        return result.moved

    async def _wait_for_arrival(self, waiter: Waiter, operation: Operation) -> None:
        try:
            await waiter.wait(operation)
        except GeneratorExit:
            if not self._in.cancel(waiter.port, operation, 0):
                waiter.port.wait(operation, seconds=1)
            raise
        except BaseException:
            if not self._in.cancel(waiter.port, operation, 0):
                await waiter.wait_shielded(operation)
            raise

    def _take_unread(self, view: Any) -> int:
        n = min(len(self._unread), len(view))
        if n:
            _native.fill(view, memoryview(self._unread)[:n])
            self._unread = self._unread[n:]
        return n

    async def aclose(self) -> None:
        """Close; a task that is receiving gets StreamClosed."""
        await self._close()

    @property
    def stats(self) -> Stats:
        """Counters, as of now."""
        counters = self._in.stats()
        return Stats(
            bytes_received=counters.bytes,
            receive_calls=counters.calls,
            receive_waits=counters.waits,
        )
