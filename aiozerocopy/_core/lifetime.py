"""A stream's tie to its event loop, and its end.

A stream is bound to the loop that first uses it, and refuses any other.  It ends by
``aclose`` (in that loop), by ``abort`` (anywhere), or by being collected (a warning,
then abort); in a forked child it cannot be used at all.

If the end is interrupted, by a signal handler's exception say, call it again: every
step may be repeated, and only the last marks the stream as ended.
"""

from __future__ import annotations

import contextlib
import errno
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.streams.file import FileStreamAttribute

from aiozerocopy._core.channel import lane_of
from aiozerocopy._core.errors import StreamClosed, error_of
from aiozerocopy._core.waiter import (
    LOOP_IS_CHEAP,
    announce_closing,
    current_waiter,
    running_asyncio_loop,
    running_tasks,
    runs_here,
    this_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from typing_extensions import Self

    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.waiter import Waiter

NOWHERE = object()


@dataclass(frozen=True)
class Stats:
    """What a stream has done so far, and what is queued now."""

    bytes_sent: int = 0
    messages_sent: int = 0
    sent_at_once: int = 0  # sends that their own call finished (joined messages: one)
    send_calls: int = 0  # system calls
    send_waits: int = 0  # of those, how many met a full pipe or socket
    bytes_rescued: int = 0  # copied so that a message could go on without its memory
    bytes_queued: int = 0  # within the limit: see `SendStream.put`
    messages_queued: int = 0
    bytes_received: int = 0
    receive_calls: int = 0
    receive_waits: int = 0


class Ready:
    """An object that is ready from the start, but may be awaited.

    So the result of every function that opens something may be awaited, and one that
    need not wait may also be called where there is no event loop.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class Bound(Ready):
    """The common part of the sending and receiving sides: a waiter and a lifetime."""

    _watchers: tuple[Callable[[], object], ...] = ()
    _has_ended = True  # until __init__ has made something that must end

    def __init__(self, *channels: Channel) -> None:
        self._channels = channels
        self._waiter: Waiter | None = None
        # Compared with the running asyncio loop at every call: the stream's loop, or
        # NOWHERE if the stream is not bound to such a loop, or takes no more messages.
        self._loop: Any = NOWHERE
        self._thread = 0
        self._binders: list[int] = []  # threads; the first to begin gets the stream
        self._key = object()  # by which the waiter knows this stream
        self._spent = 0  # of the budget, by calls that finished at once
        self._budget = 0  # see `Loop.budget`; 0 until the stream is bound
        self._closed = False  # True: it takes no more work
        self._has_ended = False  # True: everything was given back

    def _enter(self) -> Waiter:
        """Bind to the running loop at first use, and refuse any other."""
        waiter = self._waiter
        if waiter is not None and (
            running_asyncio_loop() is self._loop
            if LOOP_IS_CHEAP
            else self._loop in running_tasks and this_thread() == self._thread
        ):
            return waiter
        if self._closed:
            raise StreamClosed("the stream is closed")
        if waiter is not None and self._budget and runs_here(waiter.loop):
            return waiter
        return self._bind()

    def _bind(self) -> Waiter:
        if self._channels[0].inherited:
            raise error_of(-errno.ECHILD)
        try:
            return self._bind_first()
        except BaseException:  # the next to begin may get the stream
            with contextlib.suppress(ValueError):
                self._binders.remove(this_thread())
            raise

    def _bind_first(self) -> Waiter:
        waiter = self._waiter
        if waiter is None or not self._budget:
            self._binders.append(this_thread())
            if self._binders[0] == this_thread():
                waiter = self._waiter = current_waiter()
        if waiter is None or not runs_here(waiter.loop):
            raise RuntimeError(
                "the stream is used by another event loop; from another thread use "
                "send_from_thread, or anyio.from_thread.run"
            )
        waiter.join(self._key)
        if self._closed:  # `abort` ran in another thread before, and saw no waiter
            self._waiter = None
            waiter.leave(self._key)
            raise StreamClosed("the stream is closed")
        self._budget, self._thread = waiter.loop.budget, this_thread()
        if not waiter.is_trio:
            self._loop = waiter.loop.native
        return waiter

    def _budget_is_spent(self, n: int) -> bool:
        """Return True now and then, so that calls that never wait yield to the loop."""
        self._spent += 1 + (n >> 12)
        if self._spent < self._budget:
            return False
        self._spent = 0
        return True

    async def _close(self) -> None:
        """Close the fd; return when it is closed, or after `Channel.patience`."""
        waiter = self._waiter
        if waiter is None or not runs_here(waiter.loop):
            self.abort()
            return
        self._refuse_more()
        # (close them all before waiting for the first)
        pending = [(each, each.close(waiter.port)) for each in self._channels]
        try:
            for channel, operation in pending:
                await waiter.wait_shielded(operation, channel.patience())
        finally:
            self._end()

    def abort(self) -> None:
        """Close at once; what is queued is lost, and its senders get StreamClosed.

        Never waits for the peer; may be called from any thread and without a loop.
        """
        if self._has_ended:
            return
        self._refuse_more()
        for channel in self._channels:
            channel.abort()
        self._end()

    def _refuse_more(self) -> None:
        if (fd := self.fileno()) >= 0:
            announce_closing(fd)
        self._closed, self._loop = True, NOWHERE
        self._let_go()
        for watcher in self._watchers:
            watcher()

    @contextlib.contextmanager
    def _watched(self, watcher: Callable[[], object]) -> Generator[None]:
        """Within the block, call the watcher if this is closed, in whichever thread."""
        self._watchers += (watcher,)
        try:
            yield
        finally:
            self._watchers = tuple(w for w in self._watchers if w is not watcher)

    def _end(self) -> None:
        """Give back the buffers of operations that have ended, and leave the loop."""
        waiter = self._waiter
        for channel in self._channels:
            channel.unbind_port()
        if waiter is not None and not self._channels[0].inherited:
            waiter.leave(self._key)
        self._waiter = None
        self._has_ended = True

    def _let_go(self) -> None:
        """A hook, called before the fd is closed: other users of the fd must stop."""

    def fileno(self) -> int:
        """Return the stream's own fd (not the one it was made from); -1 if closed."""
        return -1 if self._closed else self._channels[0].fileno()

    @property
    def stats(self) -> Stats:
        """The counters as of now; of both directions if there are two."""
        return Stats()  # (each direction adds its own)

    @property
    def lane(self) -> str:
        """How the bytes travel: "copy" (the kernel makes one copy), or "vmsplice" if a
        pool's pages were lent to the reader, and may be lent again."""
        return lane_of(self._channels[0].stats())

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {FileStreamAttribute.fileno: self.fileno}

    def __del__(self) -> None:
        if self._has_ended or self._channels[0].inherited:
            return
        try:
            if not self._closed:
                warnings.warn(
                    f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
                )
        finally:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"fd={self.fileno()}"
        return f"<{type(self).__name__} {state}>"
