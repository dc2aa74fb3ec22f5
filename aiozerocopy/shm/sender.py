"""Sender: the side of a ring that sends, and the line of the tasks that want to.

It calls C, which moves the record or arms the doorbell.  Then it waits for the bell,
and calls again.  A cancel arrives while it waits, when nothing was moved.

The next record has one place in the ring, so one task at a time makes it; the others
wait in the order of their calls.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from aiozerocopy._core import waiter
from aiozerocopy._core.change import RemoteChange
from aiozerocopy._core.pins import Pins, nbytes, pin
from aiozerocopy._core.ring_end import FULL, RESERVED, RingEnd
from aiozerocopy.shm.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

T = TypeVar("T")

SLACK = 0.001  # seconds: see azc_shm_send
AGAIN = (FULL, RESERVED)


class Line:
    """The tasks' places; the task with the first place may send."""

    def __init__(self) -> None:
        self._places: collections.deque[weakref.ref[Place]] = collections.deque()

    def is_empty(self) -> bool:
        return self._first() is None

    def _first(self) -> Place | None:
        for entry in self._places.copy():  # (another thread's finalizers remove some)
            if (place := entry()) is not None:
                return place
            with contextlib.suppress(ValueError):
                self._places.remove(entry)
        return None

    def wake(self) -> None:
        """Let the first task look again; any thread or finalizer may call it."""
        first = self._first()
        if first is not None:
            first.change.happen()


class Place:
    """A place in the line; a new one is the last.

    It leaves the line by `close`, or when it is collected.
    """

    def __init__(self, line: Line) -> None:
        self.change: RemoteChange = RemoteChange()
        self._line = line
        self._entry = weakref.ref(self)
        line._places.append(self._entry)

    async def wait(self) -> None:
        """Return when the place is the first; without a checkpoint if it is already."""
        await self.change.wait(self.is_first)

    def is_first(self) -> bool:
        return self._line._first() is self

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._line._places.remove(self._entry)
        self._line.wake()

    def __del__(self) -> None:
        if hasattr(self, "_entry"):
            self.close()


class Sender(Side):
    """Copies records into the ring, or gives room for them, one at a time."""

    def __init__(self, end: RingEnd) -> None:
        self.line: Line = Line()
        super().__init__(end)

    async def send(self, buffers: Sequence[Buffer], type_id: int) -> None:
        """Send one record; see `Ring.send`."""
        self.enter()
        pins = Pins()
        try:
            try:
                pins = Pins(map(pin, buffers))
                total = sum(map(len, pins))
                await waiter.enter()
                await self.breathe(total)  # (first: a cancel here leaves no trace)
                self.enter()
                result = FULL
                if self.line.is_empty():
                    result = self.end.send(pins, type_id)
                if result in AGAIN:
                    with contextlib.closing(Place(self.line)) as place:
                        step = partial(self.end.send, pins, type_id)
                        result = await self._in_turn(place, step)
                if result < 0:
                    raise self.end.error(result, total)
            finally:
                pins.release()
        except BaseException:  # (a signal handler may raise in the line above, too)
            pins.release()
            raise

    def try_send(self, buffers: Sequence[Buffer], type_id: int) -> bool:
        """Send a record as `send` does; False if it would have to wait."""
        self.enter()
        if not self.line.is_empty():
            return False
        result = self.end.send_now(buffers, type_id)
        if result < 0 and result not in AGAIN:
            raise self.end.error(result, sum(map(nbytes, buffers)))
        return result == 0

    async def reserve_at(self, place: Place, nbytes: int) -> memoryview:
        """Wait for this place to be the first, then for room."""
        self.enter()
        await waiter.enter()
        await self.breathe(nbytes)
        step = partial(self.end.reserve, nbytes, self.line.wake)
        reserved = await self._in_turn(place, step)
        if isinstance(reserved, memoryview):
            return reserved
        raise self.end.error(reserved, nbytes)

    async def _in_turn(self, place: Place, step: Callable[[], T]) -> T:
        """Call the step when the place is the first, until there is room."""
        await place.wait()
        slack: float | None = SLACK
        while True:
            self.enter()
            result = step()
            if result not in AGAIN:
                return result
            await self._wait(place, slack)
            slack = None

    async def _wait(self, place: Place, slack: float | None) -> None:
        """Wait for room, at most ``slack`` seconds if that is not None.

        The first time, the bell rings late: when there is more room than needed.  But
        if a dropped room still has views, which could write to it, wait for their end.
        """
        if not self.end.is_unreserved():
            await place.change.wait(lambda: self.closed or self.end.is_unreserved())
            return
        with anyio.move_on_after(slack):
            await self.news()

    def commit(self, nbytes: int, type_id: int) -> None:
        self.enter()
        result = self.end.commit(nbytes, type_id)
        if result < 0:
            raise self.end.error(result, nbytes)

    def _close(self) -> None:
        super()._close()
        self.line.wake()
