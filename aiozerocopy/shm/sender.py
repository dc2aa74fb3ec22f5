"""Sender: the side of a ring that sends, and the line of the tasks that want to.

A call asks C, which moves the record or arms the doorbell.  Then it waits for the bell,
and asks again.  A cancel is delivered while it waits, when nothing was moved.

A record is made at one place of the ring, so one task at a time makes one; the others
wait in the order of their calls.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core import waiter
from aiozerocopy._core.change import RemoteChange
from aiozerocopy._core.pins import Pins, pin
from aiozerocopy._core.ring_end import FULL, RESERVED, RingEnd
from aiozerocopy.shm.side import Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer, Self


SLACK = 0.001  # seconds: see azc_shm_send


class Line:
    """The places, the first of which may send."""

    def __init__(self) -> None:
        self._places: collections.deque[weakref.ref[Place]] = collections.deque()

    def is_empty(self) -> bool:
        return self._first() is None

    def _first(self) -> Place | None:
        while self._places:
            place = self._places[0]()
            if place is not None:
                return place
            with contextlib.suppress(IndexError):
                self._places.popleft()
        return None

    def wake(self) -> None:
        """Let the first look again.  Any thread or finalizer may call it."""
        first = self._first()
        if first is not None:
            first.change.happen()


class Place:
    """A place in the line, the last when it is made.

    It leaves the line by `leave`, or when it is collected.
    """

    def __init__(self, line: Line) -> None:
        self.change: RemoteChange = RemoteChange()
        self._line = line
        self._entry = weakref.ref(self)
        line._places.append(self._entry)

    async def wait(self) -> None:
        """Return when it is the first; without a checkpoint if it is so already."""
        await self.change.wait(self.is_first)

    def is_first(self) -> bool:
        return self._line._first() is self

    def leave(self) -> None:
        with contextlib.suppress(ValueError):
            self._line._places.remove(self._entry)
        self._line.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        if hasattr(self, "_entry"):
            self.leave()


class Sender(Side):
    """Copies records into the ring, or has them made there, one at a time."""

    def __init__(self, end: RingEnd) -> None:
        super().__init__(end)
        self.line: Line = Line()

    async def send(self, buffers: Sequence[Buffer], type_id: int) -> None:
        """Send one record; see `Ring.send`."""
        self.enter()
        pins = Pins(map(pin, buffers))
        try:
            nbytes = sum(map(len, pins))
            await waiter.enter()
            await self.breathe(nbytes)  # first: a cancel here leaves no trace
            self.enter()
            result = FULL
            if self.line.is_empty():
                result = self._send_now(pins, type_id)
            if result == FULL:
                result = await self._send_in_turn(pins, type_id)
            if result < 0:
                raise self.end.error(result, nbytes)
        finally:
            pins.release()

    def try_send(self, buffers: Sequence[Buffer], type_id: int) -> bool:
        """Send a record as `send` does; False if it would have to wait."""
        self.enter()
        if not self.line.is_empty():
            return False
        pins = Pins(map(pin, buffers))
        try:
            result = self._send_now(pins, type_id)
            if result < 0 and result != FULL:
                raise self.end.error(result, sum(map(len, pins)))
            return result != FULL
        finally:
            pins.release()

    async def _send_in_turn(self, pins: Pins, type_id: int) -> int:
        with Place(self.line) as place:
            await place.wait()
            is_first = True
            while (result := self._send_now(pins, type_id)) == FULL:
                await self._wait(place, is_first)
                is_first = False
            return result

    def _send_now(self, pins: Pins, type_id: int) -> int:
        """Called by the first in line."""
        result = self.end.send(pins, type_id)
        return FULL if result == RESERVED else result

    async def reserve_at(self, place: Place, nbytes: int) -> memoryview:
        """Wait for this place to be the first, then for room."""
        self.enter()
        await waiter.enter()
        await self.breathe(nbytes)
        await place.wait()
        is_first = True
        while True:
            self.enter()
            reserved = self.end.reserve(nbytes, self.line.wake)
            if isinstance(reserved, memoryview):
                return reserved
            if reserved not in (FULL, RESERVED):
                raise self.end.error(reserved, nbytes)
            await self._wait(place, is_first)
            is_first = False

    async def _wait(self, place: Place, is_first: bool) -> None:
        """For the first time C has the bell rung only once there is more room.

        A room that was dropped, and is still seen by a view, comes before that.
        """
        if not self.end.is_unreserved():
            await place.change.wait(lambda: self.closed or self.end.is_unreserved())
            return
        with anyio.move_on_after(SLACK if is_first else None):
            await self.news()

    def commit(self, nbytes: int, type_id: int) -> None:
        self.enter()
        result = self.end.commit(nbytes, type_id)
        if result < 0:
            raise self.end.error(result, nbytes)
