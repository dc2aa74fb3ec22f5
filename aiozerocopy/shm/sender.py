"""Sender: the side of a ring that sends.

A call asks C, which moves the record or arms the doorbell.  Then it waits for the bell,
and asks again.  A cancel is delivered while it waits, when nothing was moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core import waiter
from aiozerocopy._core.pins import Pins, pin
from aiozerocopy._core.ring_end import FULL, RESERVED
from aiozerocopy.shm.line import Line, Place
from aiozerocopy.shm.side import Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy._core.ring_end import RingEnd


SLACK = 0.001  # seconds: see azc_shm_send


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

    async def _send_in_turn(self, pins: Pins, type_id: int) -> int:
        with Place(self.line) as place:
            await place.wait()
            is_first = True
            while (result := self._send_now(pins, type_id)) == FULL:
                await self._wait(is_first)
                is_first = False
            return result

    def _send_now(self, pins: Pins, type_id: int) -> int:
        """Called by the first in line."""
        result = self.end.send(pins, type_id)
        if result == RESERVED:  # by a slot whose finalizer was interrupted
            self.end.rollback()
            result = self.end.send(pins, type_id)
        return result

    async def reserve_at(self, place: Place, nbytes: int) -> memoryview:
        """Wait for this place to be the first, then for room."""
        self.enter()
        await waiter.enter()
        await self.breathe(nbytes)
        await place.wait()
        is_first = True
        while True:
            self.enter()
            self.end.rollback()  # (the same)
            reserved = self.end.reserve(nbytes)
            if isinstance(reserved, memoryview):
                return reserved
            if reserved != FULL:
                raise self.end.error(reserved, nbytes)
            await self._wait(is_first)
            is_first = False

    async def _wait(self, is_first: bool) -> None:
        """For the first time C has the bell rung only once there is more room."""
        if is_first:
            with anyio.move_on_after(SLACK):
                await self.bell.wait()
        else:
            await self.bell.wait()

    def commit(self, nbytes: int, type_id: int) -> None:
        self.enter()
        result = self.end.commit(nbytes, type_id)
        if result < 0:
            raise self.end.error(result, nbytes)

    def rollback(self) -> None:
        self.end.rollback()
