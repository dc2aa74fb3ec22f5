"""Side: the common base of sending and receiving: a ring's end, its loop, its closing.

The states, and who owns what
    open      the fds are C's, and the loop that the ring was opened in watches them
    closed    nothing can be sent or received.  The loop stops watching, in its own
              thread, and only then are the fds closed.  Records that are held stay
              valid
    dead      in a forked child, which touches neither loop nor fds

The loop watches the ring's doorbell, and the socket, whose end means that the peer has
gone.  Each wakes all waiting tasks, which look at the ring again.  They are woken
before the doorbell is emptied: if a signal handler raises in between, the bell still
rings, and they are woken once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy._core import waiter
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.ring_end import CLOSED, RingEnd
from aiozerocopy._core.waiter import call_soon, current_loop, runs_here

if TYPE_CHECKING:
    from collections.abc import Callable


class Side:
    """One side of a ring, in the loop that runs now.

    It does not know the `Ring`, which can be collected while the loop still watches.
    """

    def __init__(self, end: RingEnd) -> None:
        self.end = end
        self.closed: bool = False
        self._loop = current_loop()
        self._spent = 0  # of the loop's budget, by calls that finished at once
        self._listeners: dict[Callable[[], object], None] = {}
        self._fds = end.fds()
        self._watched: set[int] = set()
        try:
            for fd in self._fds:
                self._watched.add(fd)
                self._loop.watch(fd, self._hear)
        except BaseException:
            self._close()  # (so that the peer sees the end)
            raise

    def enter(self) -> None:
        """Refuse a call in a child or another loop, and after the end."""
        if self.end.inherited:
            raise StreamClosed(
                "the ring belongs to the parent process, and this is a forked child: "
                "open a ring of its own here"
            )
        if self.closed:
            raise StreamClosed(CLOSED)
        if not runs_here(self._loop):
            raise RuntimeError("the ring is used by another event loop, or thread")

    async def begin(self) -> None:
        """Begin a call whose result may be here already: let others run, as `breathe`.

        Raises: as `enter`.
        """
        self.enter()
        await waiter.enter()
        await self.breathe(0)
        self.enter()

    async def breathe(self, nbytes: int) -> None:
        """Yield to the loop now and then, for the sake of calls that never wait."""
        self._spent += 1 + (nbytes >> 12)
        if self._spent >= self._loop.budget:
            self._spent = 0
            await self._loop.yield_to_loop()

    # -- news of the other side -------------------------------------------------------

    async def news(self) -> None:
        """Return when something may have changed."""
        await self._loop.park(self)

    def listen(self, listener: Callable[[], object]) -> None:
        self._listeners[listener] = None
        if not self._watched:
            self._tell()

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.pop(listener, None)

    def _hear(self) -> None:
        self._tell()
        if self.end.hear():
            self._unwatch(self._fds[1])  # (it would be readable for ever)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
            self._listeners.pop(listener, None)

    def _unwatch(self, fd: int) -> None:
        if fd in self._watched:
            self._loop.unwatch(fd)
            self._watched.discard(fd)

    # -- the end ----------------------------------------------------------------------

    def leave(self, clean: bool) -> None:
        """Close.  If ``clean`` the peer sees a close, otherwise our death."""
        if not self.end.inherited and not self.closed:
            self.end.leave(clean)
            # (soon, if this is not the loop's own thread)
            call_soon(self._loop, self._close)
        self.closed = True

    def _close(self) -> None:
        for fd in self._fds:
            self._unwatch(fd)
        self.end.close()
        self._tell()
