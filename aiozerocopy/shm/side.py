"""Side: what sending and receiving share: a ring's end, its loop, and its end of life.

The states, and who owns what
    open      the fds are C's, and the loop that the ring was opened in watches them
    closed    nothing can be sent or received.  `Bell.close` lets the loop stop
              watching, in its own thread, and only then are the fds closed.  Records
              that are held stay valid
    dead      in a forked child: nothing is touched, neither loop nor fds
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.ring_end import CLOSED
from aiozerocopy.shm.bell import Bell

if TYPE_CHECKING:
    from aiozerocopy._core.ring_end import RingEnd


class Side:
    """One side of a ring, in the loop that runs now."""

    def __init__(self, end: RingEnd) -> None:
        self.end = end
        self.bell: Bell = Bell(end)
        self.closed: bool = False
        self._spent = 0  # of the loop's budget, by calls that finished at once

    def enter(self) -> None:
        """Refuse what cannot be done here, or no more."""
        if self.end.inherited:
            raise StreamClosed(
                "the ring belongs to the parent process, and this is a forked child: "
                "open a ring of its own here"
            )
        if self.closed:
            raise StreamClosed(CLOSED)
        if not self.bell.is_current():
            raise RuntimeError("the ring is used by another event loop, or thread")

    async def breathe(self, nbytes: int) -> None:
        """Yield to the loop once in a while, so that calls which never wait do."""
        self._spent += 1 + (nbytes >> 12)
        if self._spent >= self.bell.budget:
            self._spent = 0
            await self.bell.yield_to_loop()

    def leave(self, clean: bool) -> None:
        """Close: the peer is told so, or sees what it sees if we die."""
        if not self.end.inherited and not self.closed:
            self.end.leave(clean)
            self.bell.close()
        self.closed = True
