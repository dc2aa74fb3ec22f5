"""A stream's tie to its event loop, and its end.

A stream is bound to the loop that first uses it, and refuses any other.  It ends by
``aclose`` (in that loop), by ``abort`` (anywhere), or by being collected (a warning,
then abort); in a forked child it is dead from the start.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.streams.file import FileStreamAttribute

from aiozerocopy import _native, _waiter
from aiozerocopy._errors import StreamClosed
from aiozerocopy._waiter import running_asyncio_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiozerocopy._native import Channel
    from aiozerocopy._waiter import Waiter

NOWHERE = object()


@dataclass(frozen=True)
class Stats:
    """What a stream has done so far, and what is queued now."""

    bytes_sent: int = 0
    messages_sent: int = 0
    sent_at_once: int = 0  # messages that needed no thread and no waiting
    send_calls: int = 0  # system calls
    send_waits: int = 0  # of those, how many met a full pipe or socket
    bytes_rescued: int = 0  # copied because a send was cancelled
    bytes_queued: int = 0
    messages_queued: int = 0
    bytes_received: int = 0
    receive_calls: int = 0
    receive_waits: int = 0


class Bound:
    """What the sending and the receiving side share: a waiter and a lifetime."""

    def __init__(self) -> None:
        self._waiter: Waiter | None = None
        # The running asyncio loop is compared with this at every call: it is ours
        # only while the stream is open and bound there.
        self._home: Any = NOWHERE
        self._closed = False
        self._spent = 0  # of the turn that calls have which end at once
        self._turn = 0

    def _channels(self) -> Sequence[Channel]:
        raise NotImplementedError

    def _enter(self) -> Waiter:
        """Bind to the running loop at first use, and refuse any other."""
        waiter = self._waiter
        if waiter is not None and running_asyncio_loop() is self._home:
            return waiter
        if self._closed:
            raise StreamClosed("the stream is closed")
        if waiter is not None and _waiter.is_current(waiter):
            return waiter
        return self._bind()

    def _bind(self) -> Waiter:
        if self._channels()[0].inherited:
            raise StreamClosed(
                "the stream belongs to the parent process, and this is a forked "
                "child: open a stream of its own here"
            )
        if self._waiter is not None:
            raise RuntimeError(
                "the stream is used by another event loop; from another thread use "
                "send_from_thread, or anyio.from_thread.run"
            )
        self._waiter = _waiter.join()
        if not self._waiter.is_trio:
            self._home = self._waiter.native
        self._turn = self._waiter.loop.turn
        return self._waiter

    def _turn_is_over(self, n: int) -> bool:
        """Calls that never wait must let others run once in a while."""
        self._spent += 1 + (n >> 12)
        if self._spent < self._turn:
            return False
        self._spent = 0
        return True

    async def _close(self) -> None:
        """Close the fd, and return when it is closed."""
        waiter = self._waiter
        if self._closed:
            return
        here = waiter is not None and _waiter.is_current(waiter)
        if waiter is None or not here or self._channels()[0].inherited:
            self.abort()
            return
        self._closed, self._home = True, NOWHERE
        self._let_go()
        pending = [
            (channel, channel.close(waiter.port)) for channel in self._channels()
        ]
        self._on_close()
        try:
            for channel, operation in pending:
                if operation is not None:
                    await waiter.wait_shielded(operation, channel.patience())
        finally:
            for channel in self._channels():
                channel.free()
            waiter.port.drain()  # what was queued is the caller's again
            self._waiter = None
            waiter.leave()

    def abort(self) -> None:
        """Close at once; what is queued is lost, and its senders get StreamClosed.

        Never waits for the peer; may be called from any thread and without a loop.
        """
        if self._closed:
            return
        self._closed, self._home = True, NOWHERE
        self._let_go()
        waiter, self._waiter = self._waiter, None
        if self._channels()[0].inherited:
            return  # the parent's: touch neither the fds nor the loop
        for channel in self._channels():
            channel.close_now()
        if waiter is not None:
            waiter.call_soon(waiter.port.drain)
            waiter.call_soon(self._on_close)
            waiter.leave()

    def _let_go(self) -> None:
        """Nobody else may use the fd from here on: it is about to be closed."""

    def _on_close(self) -> None:
        """Tell those whom no operation tells, in the loop's thread."""

    def fileno(self) -> int:
        """The stream's own fd, which is not the one it was made from; -1 if closed."""
        return -1 if self._closed else self._channels()[0].fileno()

    @property
    def lane(self) -> str:
        """How the bytes travel: "copy" (one copy, made by the kernel), or "vmsplice"
        or "zerocopy" once a pool's pages were lent to a pipe's reader, or to TCP, and
        may be again."""
        return _native.lane_of(self._channels()[0].stats())

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {FileStreamAttribute.fileno: self.fileno}

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._channels()[0].inherited:
            return
        try:
            warnings.warn(
                f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
            )
        finally:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"fd={self.fileno()}"
        return f"<{type(self).__name__} {state}>"
