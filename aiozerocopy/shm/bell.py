"""Bell: tells the tasks of one event loop that the other side has done something.

It watches the ring's doorbell, and the socket whose end means that the peer is gone.
Each wakes all who wait; each of them then looks at the ring again.  They are told
before the doorbell is emptied: a signal's exception in between leaves it ringing, so
that they are told once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy._core.waiter import call_soon, current_loop, runs_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozerocopy._core.ring_end import RingEnd


class Bell:
    """The loop that runs now, and what it waits for.  It does not know the `Ring`,
    which can be collected while the loop still watches."""

    def __init__(self, end: RingEnd) -> None:
        self._end = end
        self._loop = current_loop()
        self.budget: int = self._loop.budget
        self.yield_to_loop: Callable[[], Awaitable[None]] = self._loop.yield_to_loop
        self._listeners: dict[Callable[[], object], None] = {}
        self._fds = end.fds()
        self._watched: set[int] = set()
        try:
            for fd in self._fds:
                self._loop.watch(fd, self._hear)
                self._watched.add(fd)
        except BaseException:
            self._close()  # the peer must hear that nobody comes
            raise

    def is_current(self) -> bool:
        """Does this loop run in this thread?"""
        return runs_here(self._loop)

    async def wait(self) -> None:
        """Return when something has changed, or without that."""
        await self._loop.park(self)

    def listen(self, listener: Callable[[], object]) -> None:
        self._listeners[listener] = None
        if not self._watched:
            self._tell()

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.pop(listener, None)

    def _hear(self) -> None:
        self._tell()
        if self._end.hear():
            self._unwatch(self._fds[1])  # it would be readable for ever

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
            self._listeners.pop(listener, None)

    def _unwatch(self, fd: int) -> None:
        if fd in self._watched:
            self._loop.unwatch(fd)
            self._watched.discard(fd)

    def close(self) -> None:
        """Watch nothing any more, close the fds, and wake all who wait; soon, if this
        is not the loop's own thread."""
        call_soon(self._loop, self._close)

    def _close(self) -> None:
        for fd in self._fds:
            self._unwatch(fd)
        self._end.close()
        self._tell()
