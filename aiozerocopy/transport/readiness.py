"""When an fd has something to read: told by the loop's readers, or by an epoll of ours.

uvloop calls the reader of a socket that was reset once, and never again, since libuv
takes any error for a bad fd.  If something came just before the reset, that call reads
it, and nobody is told of the end.  So on loops other than asyncio's own one epoll
watches all fds, and the loop watches that.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import select
import weakref
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENTS = 64  # taken from an epoll at once


class Readiness(Protocol):
    """Of the fds of one loop.  Each method may be called twice."""

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back whenever it is readable, has ended or has failed."""

    def pause(self, fd: int) -> None:
        """Watch it no more, for now."""

    def forget(self, fd: int) -> None:
        """Before it is closed."""


class _Readers:
    """The loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        self._loop.add_reader(fd, callback)

    def pause(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)

    forget = pause


class _Epoll:
    """Ours, open from the first fd that is watched until the last is forgotten."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll: select.epoll | None = None
        # None: it is paused, and nothing of ours keeps its transport alive.
        self._callbacks: dict[int, Callable[[], object] | None] = {}

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        if self._epoll is None or self._epoll.closed:
            self._epoll = select.epoll()
        if not self._callbacks:
            self.loop.add_reader(self._epoll.fileno(), self._hear)
        run = contextvars.copy_context().run
        self._callbacks[fd] = partial(run, callback)
        with contextlib.suppress(FileExistsError):
            self._epoll.register(fd, select.EPOLLIN)

    def pause(self, fd: int) -> None:
        if self._epoll is not None and self._callbacks.get(fd) is not None:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(fd)
            self._callbacks[fd] = None

    def forget(self, fd: int) -> None:
        self.pause(fd)
        self._callbacks.pop(fd, None)
        epoll = self._epoll
        if not self._callbacks and epoll is not None and not epoll.closed:
            if not self.loop.is_closed():
                self.loop.remove_reader(epoll.fileno())
            epoll.close()

    def _hear(self) -> None:
        epoll = self._epoll
        if epoll is None or epoll.closed:
            return
        for fd, _ in epoll.poll(0, _EVENTS):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()


# By the ids of their loops.  A loop refers to its own by the reader, so the values are
# weak: a loop that was dropped must be collected with all that it has.
_epolls: weakref.WeakValueDictionary[int, _Epoll] = weakref.WeakValueDictionary()


def readiness_in(loop: asyncio.AbstractEventLoop) -> Readiness:
    """That of a loop, from the first fd to be watched until the last is forgotten."""
    if isinstance(loop, asyncio.SelectorEventLoop) or not hasattr(select, "epoll"):
        return _Readers(loop)
    epoll = _epolls.get(id(loop))
    if epoll is None or epoll.loop is not loop:
        epoll = _epolls[id(loop)] = _Epoll(loop)
    return epoll


os.register_at_fork(after_in_child=_epolls.clear)
