"""Receiver: the side of a ring that receives, for one task at a time.

It calls C, which takes records or arms the doorbell.  Then it waits for the bell, and
calls again.  A cancel arrives while it waits, when it has taken nothing.  If a signal
handler raises after records were taken, the next call takes them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from aiozerocopy._core import waiter
from aiozerocopy._core.change import LOOK_AGAIN
from aiozerocopy._core.ring_end import EMPTY, RingEnd, Taken
from aiozerocopy.shm.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Receiver(Side):
    """Takes records, which stay where they are."""

    def __init__(self, end: RingEnd) -> None:
        self._is_busy = False
        super().__init__(end)  # (last: it begins to watch, until it is closed)

    async def receive(self, most: int, result: Callable[[Taken], T]) -> T:
        """Return what ``result`` makes of the next records, ``most`` at most."""
        self.enter()
        if self._is_busy:
            raise anyio.BusyResourceError("reading from")
        self.end.keep()
        try:
            try:
                self._is_busy = True
                await waiter.enter()
                await self.breathe(0)  # before anything is taken
                taken = await self._take(most)  # (kept by a traceback, for `untake`)
                received = result(taken)
                self._is_busy = False
                return received
            except BaseException:
                self._undo()
                raise
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        self.end.untake()
        self._is_busy = False

    async def _take(self, most: int) -> Taken:
        while True:
            self.enter()
            taken = self.end.take(most)
            if isinstance(taken, Taken):
                return taken
            if taken == 0:
                raise anyio.EndOfStream
            if taken != EMPTY:
                raise self.end.error(taken)
            await self._wait()

    async def _wait(self) -> None:
        # A held batch is lost if its finalizer is interrupted: then no bell rings.
        if self.end.forget_lost():
            with anyio.move_on_after(LOOK_AGAIN):
                await self.news()
        else:
            await self.news()
