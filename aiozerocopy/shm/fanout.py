"""FanOut: the same records to many consumers, a ring for each.

When the ring of a slow consumer is full, its policy decides.  All consumers whose rings
have room get the record before `send` waits for any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from anyio.abc import AsyncResource

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.pins import nbytes
from aiozerocopy._core.ring_end import too_large

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from aiozerocopy.shm.ring import Ring

Policy = Literal["block", "drop", "disconnect"]


class Consumer:
    """One ring of a `FanOut`, and counters of the records for it."""

    def __init__(self, ring: Ring, policy: Policy) -> None:
        self.ring = ring
        self.policy = policy
        self.sent = 0
        self.dropped = 0
        self._failure: Failure[Exception] | None = None

    @property
    def error(self) -> Exception | None:
        """Why the consumer gets no more records; a new exception each time."""
        return None if self._failure is None else self._failure.again()

    def __repr__(self) -> str:
        state = "gone" if self._failure is not None else self.policy
        return f"<Consumer {state}: {self.sent:,} sent, {self.dropped:,} dropped>"


class FanOut(AsyncResource):
    """One producer, many rings."""

    def __init__(self) -> None:
        self._consumers: list[Consumer] = []
        self._closed = False
        self._turns = Turns()

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers that still get records."""
        return tuple(self._consumers)

    def attach(self, ring: Ring, policy: Policy = "block") -> Consumer:
        """Send every record to this ring, too, from now on; the FanOut owns the ring.

        While the ring is full, these policies mean:

        ``"block"``        `send` waits for room
        ``"drop"``         the record is not sent there
        ``"disconnect"``   the ring is closed, as if this process had died

        Raises:
            ValueError: an unknown policy.
            TypeError: this side of the ring receives.
            StreamClosed: this FanOut is closed; the ring stays the caller's.
        """
        self._check_open()
        if policy not in get_args(Policy):
            choices = ", ".join(map(repr, get_args(Policy)))
            raise ValueError(f"policy must be one of {choices}, not {policy!r}")
        if not ring.sends:
            raise TypeError("this side of the ring receives, it does not send")
        consumer = Consumer(ring, policy)
        self._consumers.append(consumer)
        return consumer

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosed("the FanOut is closed")

    @in_turn
    async def send(self, *buffers: Buffer, type_id: int = 0) -> None:
        """Send one record to all consumers.

        It waits only for consumers with the policy "block".  If it is cancelled, some
        of these may not get the record.  A consumer that has died, or closed its ring,
        is left out from then on: `Consumer.error` says why.

        Raises:
            ValueError: the record is too big for one of the rings; none gets it.
            TypeError, BufferError: one of the buffers cannot be sent.
            StreamClosed: this FanOut is closed.
        """
        size = sum(map(nbytes, buffers))
        for first in self._consumers[:1]:
            await first.ring._sender().breathe(size)
        self._check_open()
        for ring in (each.ring for each in self._consumers):
            if size > ring.largest:
                raise ValueError(too_large(size, ring.capacity, ring.largest))
        late = [
            each for each in self.consumers if self._is_late(each, buffers, type_id)
        ]
        for each in late:
            try:
                await each.ring.send(*buffers, type_id=type_id)
                each.sent += 1
            except (StreamBroken, StreamClosed) as error:  # noqa: PERF203
                self._lose(each, error)

    def _is_late(
        self, consumer: Consumer, buffers: tuple[Buffer, ...], type_id: int
    ) -> bool:
        """Send the record if there is room; return whether `send` must wait for it."""
        try:
            if consumer.ring._try_send(buffers, type_id):
                consumer.sent += 1
                return False
        except (StreamBroken, StreamClosed) as error:
            self._lose(consumer, error)
            return False
        if consumer.policy == "drop":
            consumer.dropped += 1
        elif consumer.policy == "disconnect":
            self._lose(consumer, StreamBroken("it was too slow, and was disconnected"))
        return consumer.policy == "block"

    def _lose(self, consumer: Consumer, error: Exception) -> None:
        consumer._failure = Failure(error)
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        consumer.ring.abort()

    async def aclose(self) -> None:
        """Close all rings: consumers get the records sent before, then the end."""
        self._closed = True
        while self._consumers:
            await self._consumers[-1].ring.aclose()
            self._consumers.pop()
