"""Receiver: the side of a ring that receives, for one task at a time.

It asks C, which takes records or arms the doorbell.  Then it waits for the bell, and
asks again.  A cancel is delivered while it waits, when nothing was taken.
"""

from __future__ import annotations

import anyio

from aiozerocopy._core import waiter
from aiozerocopy._core.ring_end import EMPTY, Taken
from aiozerocopy.shm.side import Side


class Receiver(Side):
    """Takes records, which stay where they are."""

    _is_busy = False

    async def receive(self, most: int) -> Taken:
        """The next records, up to so many; see `Ring.receive`."""
        self.enter()
        if self._is_busy:
            raise anyio.BusyResourceError("receiving from")
        try:
            self._is_busy = True
            await waiter.enter()
            await self.breathe(0)  # before anything is taken: a cancel loses nothing
            return await self._take(most)
        finally:
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
            await self.bell.wait()
