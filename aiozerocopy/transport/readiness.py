"""Whether an fd can be read: reported by the loop's readers, and on uvloop also by an
epoll of ours.

libuv takes any error of an fd for a bad fd: after a reset it calls the socket's reader
once, and then watches the socket no more.  If data came just before the reset, that
call reads the data, and nothing reports the end.  So on loops other than asyncio's own
an epoll of ours waits for errors alone, which costs nothing until there is one.

The states of an fd there
    the loop's   its reader is called; our epoll has the fd too, without events, and so
                 reports only errors and hangups, which every epoll reports
    ours         it has failed: our epoll reports everything
    paused       neither has it, and nothing of ours keeps its transport alive

In a forked child everything is the parent's: its epolls are shared, so we change none.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import select
import weakref
from functools import partial
from typing import TYPE_CHECKING

from aiozerocopy._core.fork_and_exit import OfOneProcess

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENTS = 64  # taken from an epoll at once


class Readiness(OfOneProcess):
    """Watches fds by the readers of a loop.  Each method may be called twice."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back whenever the fd is readable, has ended or has failed."""
        if not self.inherited:
            # (the public method refuses the fd of a transport)
            add = getattr(self.loop, "_add_reader", self.loop.add_reader)
            add(fd, callback)

    def pause(self, fd: int) -> None:
        """Stop watching the fd, for now."""
        if not self.inherited and not self.loop.is_closed():
            remove = getattr(self.loop, "_remove_reader", self.loop.remove_reader)
            remove(fd)

    def forget(self, fd: int) -> None:
        """Stop watching the fd, which is closed next."""
        self.pause(fd)


class _Guarded(Readiness):
    """Has an epoll too, from the first fd watched until the last is forgotten."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._epoll: select.epoll | None = None
        self._callbacks: dict[int, Callable[[], object] | None] = {}  # None: paused

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        if self.inherited:
            return
        self.pause(fd)
        if self._epoll is None or self._epoll.closed:
            self._epoll = select.epoll()
        if not self._callbacks:
            super().watch(self._epoll.fileno(), self._hear)
        run = contextvars.copy_context().run
        self._callbacks[fd] = partial(run, callback)
        super().watch(fd, callback)
        self._epoll.register(fd, 0)

    def pause(self, fd: int) -> None:
        if self.inherited or self._callbacks.get(fd) is None:
            return
        super().pause(fd)
        if self._epoll is not None:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(fd)
        self._callbacks[fd] = None

    def forget(self, fd: int) -> None:
        if self.inherited:
            return
        self.pause(fd)
        self._callbacks.pop(fd, None)
        epoll = self._epoll
        if not self._callbacks and epoll is not None and not epoll.closed:
            super().pause(epoll.fileno())
            epoll.close()

    def _hear(self) -> None:
        epoll = self._epoll
        if epoll is None or epoll.closed:
            return
        for fd, _ in epoll.poll(0, _EVENTS):
            callback = self._callbacks.get(fd)
            if callback is not None:
                epoll.modify(fd, select.EPOLLIN)  # it is ours from now on
                super().pause(fd)
                callback()


# By the ids of their loops.  A loop refers to its `_Guarded` by the reader.  So the
# values are weak: a loop that was dropped must be collected with everything it has.
_guarded: weakref.WeakValueDictionary[int, _Guarded] = weakref.WeakValueDictionary()


def readiness_in(loop: asyncio.AbstractEventLoop) -> Readiness:
    """Return the `Readiness` of a loop, which lives as long as it watches an fd."""
    if isinstance(loop, asyncio.SelectorEventLoop) or not hasattr(select, "epoll"):
        return Readiness(loop)
    found = _guarded.get(id(loop))
    if found is None or found.loop is not loop:
        found = _guarded[id(loop)] = _Guarded(loop)
    return found


os.register_at_fork(after_in_child=_guarded.clear)
