"""Wakes the tasks that wait for operations, on asyncio, uvloop and trio.

One `Waiter` serves all streams of one event loop.  It owns a port.  When the port's fd
becomes readable, the waiter ends the operations whose events have come, and that wakes
the tasks which await them.  A second fd becomes readable when bytes have come at a
socket for which a receive waits: C receives them then, in the loop's thread, unless a
pump does because this loop is late (csrc/loop.h).  The first stream of a loop opens the
waiter and the last one closes it, so a program that has closed its streams has no fd of
ours left.

A `Waiter` is used in its loop's own thread, except for `leave`, which a garbage
collector may call from anywhere.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import contextlib
import os
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio
from anyio.lowlevel import current_token

from aiozerocopy._core.binding import lib
from aiozerocopy._core.borrows import Operation, Port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

# As asyncio.get_running_loop, but without an exception if there is none.  Before 3.12
# it calls getpid, which is a system call.
running_asyncio_loop = asyncio._get_running_loop
LOOP_IS_CHEAP = sys.version_info >= (3, 12)

# (so before 3.12 a send checks that the loop runs a task, and compares threads)
running_tasks: dict[Any, Any] = getattr(asyncio.tasks, "_current_tasks", {})
this_thread = threading.get_ident

move = lib.azc_port_move


class Changing(Protocol):
    """Something that a task can wait for: an operation, or a ring's doorbell."""

    def listen(self, listener: Callable[[], object]) -> None:
        """Call the listener at the next change, or now if nothing will change."""

    def forget(self, listener: Callable[[], object]) -> None: ...


class _AsyncioLoop:
    """The part of an asyncio loop that we need."""

    # Calls that finish at once spend it, 1 each, and 1 more for each 4 KiB; then one
    # yields to the loop.
    budget = 512
    # Delivers a cancel at the start of every call; None: a call is only cancelled
    # while it waits.
    entry: Callable[[], Awaitable[None]] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.native = loop

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self.native.add_reader(fd, callback)

    def unwatch(self, fd: int) -> None:
        if not self.native.is_closed():
            self.native.remove_reader(fd)

    def call_in_loop(self, callback: Callable[[], object]) -> None:
        self.native.call_soon_threadsafe(callback)

    def is_closed(self) -> bool:
        return self.native.is_closed()

    async def park(self, operation: Changing) -> None:
        """Return at the operation's next change, or earlier."""
        future = self.native.create_future()

        def wake() -> None:
            if not future.done() and not self.native.is_closed():
                future.set_result(None)

        try:
            operation.listen(wake)
            await future
        finally:
            operation.forget(wake)

    async def checkpoint(self) -> None:
        """Let other tasks run; a cancel is delivered."""
        await asyncio.sleep(0)

    # For calls whose work is done: on trio this delivers no cancel.
    yield_to_loop = checkpoint


class _TrioLoop:
    """The part of trio that we need; its native loop is trio's token."""

    budget = 1  # in trio every call is a checkpoint

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        import trio

        self.native = token
        self._trio = trio  # at interpreter exit, nothing can be imported
        self._watched: set[int] = set()
        self.entry: Callable[[], Awaitable[None]] | None = (
            trio.lowlevel.checkpoint_if_cancelled
        )
        self.checkpoint: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.yield_to_loop: Callable[[], Awaitable[None]] = (
            trio.lowlevel.cancel_shielded_checkpoint
        )

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        async def wait_and_call() -> None:
            # Between two waits the fd may be closed, and its number reused.  (Busy: a
            # call was interrupted, and a second task like this one is waiting.)
            with contextlib.suppress(
                self._trio.ClosedResourceError, self._trio.BusyResourceError
            ):
                while fd in self._watched:
                    await self._trio.lowlevel.wait_readable(fd)
                    callback()

        self._watched.add(fd)
        self._trio.lowlevel.spawn_system_task(wait_and_call)

    def unwatch(self, fd: int) -> None:
        self._watched.discard(fd)
        with contextlib.suppress(RuntimeError):  # trio has ended
            self._trio.lowlevel.notify_closing(fd)

    def call_in_loop(self, callback: Callable[[], object]) -> None:
        self.native.run_sync_soon(callback)

    def is_closed(self) -> bool:
        try:
            self.native.run_sync_soon(lambda: None)
        except self._trio.RunFinishedError:
            return True
        return False

    async def park(self, operation: Changing) -> None:
        event = self._trio.Event()
        wake = event.set
        try:
            operation.listen(wake)
            await event.wait()
        finally:  # (also if this coroutine was closed: it must not be woken)
            operation.forget(wake)


Loop: TypeAlias = _AsyncioLoop | _TrioLoop


class Waiter:
    """One event loop's port, shared by the streams of that loop."""

    def __init__(self, native_token: Any) -> None:
        self.loop: Loop = _adapted(native_token)
        self.port: Port = Port()
        self._watched: tuple[int, ...] = ()  # fds that are watched, or soon will be
        self._is_watching = False  # True: all of them are watched
        # A set of keys, so that a stream may leave twice, after an interruption.
        self._users: set[object] = set()
        self.entry: Callable[[], Awaitable[None]] | None = self.loop.entry
        self.checkpoint: Callable[[], Awaitable[None]] = self.loop.checkpoint
        self.yield_to_loop: Callable[[], Awaitable[None]] = self.loop.yield_to_loop

    @property
    def is_trio(self) -> bool:
        return isinstance(self.loop, _TrioLoop)

    def join(self, key: object) -> None:
        self._users.add(key)
        if not self._is_watching:
            wanted = {self.port.fileno(): self._hear}
            if (fd := self.port.receiving_fd()) >= 0:
                wanted[fd] = self._move
            self._watched = tuple(wanted)
            for fd, callback in wanted.items():
                self.loop.watch(fd, callback)
            self._is_watching = True

    def _move(self) -> None:
        """Receive bytes that have come for waiting receives."""
        if move(self.port.id):
            self._hear()

    def _hear(self) -> None:
        try:
            self.port.drain()
            if not self._users:
                self._end()
        except BaseException:  # a signal interrupted it, and no event may be left
            self.loop.call_in_loop(self._hear)
            raise

    def leave(self, key: object) -> None:
        """Serve one stream fewer, and give back those of its buffers that are free."""
        call_soon(self.loop, partial(self._leave, key))

    def _leave(self, key: object) -> None:
        self.port.drain()
        self._users.discard(key)
        if not self._users:
            self._end()

    def _end(self) -> None:
        """Close the port.  While it is busy it stays watched, and `_hear` ends it."""
        if self.port.is_busy():
            return
        if _waiters.get(id(self.loop.native)) is self:
            _waiters.pop(id(self.loop.native), None)  # (two threads may come here)
        for fd in self._watched:
            self.loop.unwatch(fd)
        self._watched, self._is_watching = (), False
        self.port.close()

    async def wait(self, operation: Operation) -> None:
        """Return once the operation is done.  A cancel leaves the operation alone."""
        while not operation.done:
            await self.loop.park(operation)

    async def wait_for_room(self, operation: Operation) -> None:
        """Return once the operation is within its channel's limit, or done."""
        while not (operation.has_room or operation.done):
            await self.loop.park(operation)

    async def wait_shielded(
        self, operation: Operation, seconds: float | None = None
    ) -> None:
        """Return once the operation is done, or after ``seconds``.

        A cancel cannot interrupt this; it is delivered afterwards.
        """
        if operation.done:
            return
        cancelled: BaseException | None = None
        with anyio.move_on_after(seconds, shield=True) as scope:
            while not operation.done:
                try:
                    await self.loop.park(operation)
                except asyncio.CancelledError as error:  # noqa: PERF203
                    if scope.cancel_called:
                        raise
                    cancelled = error
        try:
            if cancelled is not None:
                raise cancelled
        finally:
            del cancelled  # (as in SendStream._fail)


# By the ids of their loops.  The values are weak, because a waiter refers to its loop:
# a loop that was dropped with sends pending must be collected, tasks, streams and all.
_waiters: weakref.WeakValueDictionary[int, Waiter] = weakref.WeakValueDictionary()


def _adapted(native: Any) -> Loop:
    if isinstance(native, asyncio.AbstractEventLoop):
        return _AsyncioLoop(native)
    return _TrioLoop(native)


def _current_native() -> Any:
    loop = running_asyncio_loop()
    if loop is not None or "trio" not in sys.modules:
        return loop
    import trio

    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


def current_loop() -> Loop:
    """Return the loop that runs in this thread, as a `Loop`."""
    return _adapted(_current_native() or current_token().native_token)


def runs_here(loop: Loop) -> bool:
    return _current_native() is loop.native


def call_soon(loop: Loop, callback: Callable[[], object]) -> None:
    """Call back in the loop's thread; now, if this is it or the loop is closed."""
    if loop.is_closed() or runs_here(loop):
        callback()
    else:
        with contextlib.suppress(RuntimeError):
            loop.call_in_loop(callback)


def current_waiter() -> Waiter:
    """Return the running loop's waiter, which is kept only once a stream has joined."""
    native = _current_native() or current_token().native_token
    waiter = _waiters.get(id(native))
    if waiter is None or waiter.loop.native is not native:
        waiter = _waiters[id(native)] = Waiter(native)
    return waiter


async def enter() -> None:
    """Deliver a cancel on trio, where every call does so; do nothing on asyncio."""
    if running_asyncio_loop() is None and has_loop():
        await anyio.lowlevel.checkpoint_if_cancelled()


async def checkpoint() -> None:
    """Make a checkpoint on trio, where every call is one; do nothing on asyncio."""
    if running_asyncio_loop() is None and has_loop():
        await anyio.lowlevel.checkpoint()


def announce_closing(fd: int) -> None:
    """Wake tasks that wait for the fd in this thread's loop, if that is trio's.

    Finalizers call this, too, while trio is being imported or at the exit.
    """
    notify = getattr(sys.modules.get("trio.lowlevel"), "notify_closing", None)
    if notify is not None and running_asyncio_loop() is None:
        with contextlib.suppress(RuntimeError):  # no loop runs here
            notify(fd)


def has_loop() -> bool:
    return _current_native() is not None


os.register_at_fork(after_in_child=_waiters.clear)
