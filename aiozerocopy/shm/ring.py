"""Ring: one direction of records between two processes, from either side.

A cancelled call leaves no trace: nothing was sent, nothing received.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.abc import AsyncResource, ByteReceiveStream, ByteSendStream

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.receiving import Receives
from aiozerocopy._core.ring_end import PRODUCER, RingEnd, too_large
from aiozerocopy._net.connecting import check_numbers
from aiozerocopy.shm.receiver import Receiver
from aiozerocopy.shm.record import Batch, Record, only_record
from aiozerocopy.shm.routes import Route, Routes
from aiozerocopy.shm.sender import Sender
from aiozerocopy.shm.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

BATCH = 256  # records
RECEIVE_SIZE = 64 << 10  # bytes
_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class RingStats:
    """What one side of a ring has done so far, and how full the ring is."""

    capacity: int
    bytes_used: int  # bytes that the producer cannot use, now
    records: int  # sent, or taken
    nbytes: int  # in their payloads
    held: int  # records and batches from the oldest one not released on, now
    waits: int  # how often the ring was full, or empty
    rings: int  # how often the other side had to be woken


class Ring(AsyncResource, Receives["Record"]):
    """One side of a ring: either it sends, or it receives."""

    _side: Sender | Receiver | None = None  # until __init__ has made it
    _routes: Routes | None = None

    def __init__(self, end: RingEnd, spin: int = 0) -> None:
        self._end = end
        if spin:
            end.set_spin(spin)
        self._side = Sender(end) if end.role == PRODUCER else Receiver(end)

    @property
    def capacity(self) -> int:
        """The size of the ring in bytes, a power of two."""
        return self._end.capacity

    @property
    def largest(self) -> int:
        """The most bytes that a record may have."""
        return self._end.largest

    @property
    def sends(self) -> bool:
        """True: this side sends.  False: it receives."""
        return self._end.role == PRODUCER

    # -- sending ----------------------------------------------------------------------

    async def send(self, *buffers: Buffer, type_id: int = 0) -> None:
        """Send one record, made of the buffers, one after the other.

        They are copied into the ring: when this returns they are yours.  It waits
        while the ring is full, in order of the calls.  If it is cancelled, nothing is
        sent.

        Raises:
            ValueError: the record is too big for the ring, or ``type_id`` for 32 bits.
            TypeError, BufferError: one is not a buffer that can be sent.
            StreamBroken: the consumer has closed the ring, died, or broken its rules.
            StreamClosed: this side is closed.
        """
        _check_type(type_id)
        await self._sender().send(buffers, type_id)

    def _try_send(self, buffers: Sequence[Buffer], type_id: int) -> bool:
        """Send a record as `send` does; False if it would have to wait."""
        _check_type(type_id)
        return self._sender().try_send(buffers, type_id)

    def reserve(self, nbytes: int, type_id: int = 0) -> Slot:
        """Return room for a record of up to ``nbytes`` bytes, to be filled in place::

            async with ring.reserve(nbytes) as slot:
                slot.array("float32")[:] = 1

        The record is sent at the end of the block, unless an exception ends it.  After
        ``slot = await ring.reserve(nbytes)``, `Slot.commit` sends it.  No other task
        can send meanwhile.

        Raises: as `send`, when it is awaited; a wrong size is refused at once.
        """
        sender = self._sender()
        _check_type(type_id)
        if not 0 <= nbytes <= self.largest:
            raise ValueError(too_large(nbytes, self.capacity, self.largest))
        return Slot(sender, nbytes, type_id)

    def send_stream(self) -> RingSendStream:
        """Return this side as an anyio byte stream; long sends become several records.

        Closing the stream closes the ring, and the other way round.
        """
        self._sender()
        return RingSendStream(self)

    def _sender(self) -> Sender:
        if isinstance(self._side, Sender):
            return self._side
        raise TypeError("this side of the ring receives, it does not send")

    # -- receiving --------------------------------------------------------------------

    async def receive(self) -> Record:
        """Return the next record; its part of the ring is yours until you release it.

        Raises:
            EndOfStream: the producer has closed the ring, and all was received.
            StreamBroken: the producer died, or broke the ring's rules.
            StreamClosed: this side is closed.
            BusyResourceError: another task is receiving.
        """
        if self._routes is not None:
            return await self._routes.others.receive()
        return await self._receiver().receive(1, only_record)

    async def receive_batch(self, most: int = BATCH) -> Batch:
        """Return the records that are there, 1 to ``most``.  Raises: as `receive`."""
        check_most(most)
        if self._routes is not None:
            raise TypeError("a ring that has routes gives no batches: see Ring.route")
        return await self._receiver().receive(most, Batch)

    def route(self, type_id: int) -> Route:
        """Return the records of one type: ``async for record in ring.route(7)``, or
        ``await ring.route(7).receive()``, in any number of tasks.

        From then on `receive` returns only the others, and `receive_batch` is refused.
        Call it before a task waits in one of the two: that task gets the next record,
        of whatever type, and until then the route raises BusyResourceError.

        A record waits in the ring until a task receives its type: if none does, the
        ring fills.
        """
        _check_type(type_id)
        if self._routes is None:
            self._routes = Routes(self._receiver())
        return self._routes.route(type_id)

    def _receiver(self) -> Receiver:
        if isinstance(self._side, Receiver):
            return self._side
        raise TypeError("this side of the ring sends, it does not receive")

    def receive_stream(self) -> RingReceiveStream:
        """Return this side as an anyio byte stream, without boundaries of records.

        Closing the stream closes the ring, and the other way round.
        """
        self._receiver()
        return RingReceiveStream(self)

    # -- its end ----------------------------------------------------------------------

    @property
    def stats(self) -> RingStats:
        """The counters as of now."""
        counters = self._end.stats()
        return RingStats(
            capacity=self.capacity,
            bytes_used=counters.used,
            records=counters.records,
            nbytes=counters.bytes,
            held=counters.held,
            waits=counters.waits,
            rings=counters.rings,
        )

    async def aclose(self) -> None:
        """Close this side, and tell the other.

        A consumer first receives the records sent before, then the end.  Records that
        are held stay valid.  A task that waits here gets StreamClosed.
        """
        self._leave(clean=True)

    def abort(self) -> None:
        """Close as if this process had died: the peer gets StreamBroken.

        May be called from any thread, and without a loop.
        """
        self._leave(clean=False)

    def _leave(self, clean: bool) -> None:
        if self._side is not None:
            self._side.leave(clean)

    def __del__(self) -> None:
        side = self._side
        if side is None or side.closed or side.end.inherited:
            return
        try:
            warnings.warn(
                f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
            )
        finally:
            self.abort()

    def __repr__(self) -> str:
        what = "sends" if self.sends else "receives"
        is_open = self._side is not None and not self._side.closed
        return f"<Ring {what}, {f'{self.capacity:,} bytes' if is_open else 'closed'}>"


def _check_type(type_id: int) -> None:
    if type(type_id) is not int or not 0 <= type_id < 1 << 32:  # (quick if it is right)
        check_numbers(0, type_id=type_id)
        if type_id >= 1 << 32:
            raise ValueError(f"type_id must be a number of 32 bits, not {type_id}")


def check_most(most: int) -> None:
    if type(most) is not int or most < 1:  # (as above)
        check_numbers(1, most=most)


class RingSendStream(ByteSendStream):
    """A ring as a byte stream: long sends go as several records."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._turns = Turns()

    @in_turn
    async def send(self, item: bytes) -> None:
        """Send bytes as `Ring.send`; if cancelled, some of them may have been sent."""
        await self._ring._sender().begin()
        most = min(self._ring.largest, self._ring.capacity // 4)
        # (an exception's traceback may keep this frame, but not the buffer)
        with memoryview(item) as memory, memory.cast("B") as view:
            for start in range(0, len(view), most):
                with view[start : start + most] as record:
                    await self._ring.send(record)

    async def aclose(self) -> None:
        await self._ring.aclose()


class RingReceiveStream(ByteReceiveStream):
    """A ring as a byte stream: the bytes of one record after the other."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # The rest of the last record.  With routes several tasks may receive: then of
        # several records.
        self._unread: list[memoryview] = []

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.  Raises: as `Ring.receive`."""
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be a positive integer, not {max_bytes}")
        await self._ring._receiver().begin()
        unread = self._unread
        while not unread or not unread[0]:  # (a record may be empty)
            if unread:  # (nothing is kept while we wait)
                del unread[0]
            else:
                # (one statement without a call: no signal handler runs in between)
                unread += ((await self._ring.receive())._view or _NOTHING,)
        piece, rest = bytes(unread[0][:max_bytes]), unread[0][max_bytes:] or _NOTHING
        # (One line without a call: a signal handler may raise at a new line or a call.)
        unread[0] = rest; return piece  # noqa: E702  # fmt: skip

    async def aclose(self) -> None:
        await self._ring.aclose()
        self._unread.clear()
