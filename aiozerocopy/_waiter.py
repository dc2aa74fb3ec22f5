"""Completions -> whoever awaits, on asyncio, uvloop and trio.

One `Waiter` serves all streams of one event loop.  It owns a port; the loop watches
the port's fd, and when that becomes readable the waiter ends the operations whose
events have come, which wakes the tasks that await them.  The waiter lives while
streams use it: the first one opens it, the last one to close takes it away, so that
a program which closed its streams has no fd of ours left.

Everything here runs in the loop's own thread, except `Waiter.leave`, which a garbage
collector may call from anywhere.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.lowlevel import current_token

from aiozerocopy import _native
from aiozerocopy._native import Operation, Port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

# asyncio.get_running_loop without the exception where there is none
running_asyncio_loop = asyncio._get_running_loop


class _Loop(Protocol):
    """What the waiter needs of an event loop."""

    turn: int  # calls that may end at once before others have their turn

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...
    def unwatch(self, fd: int) -> None: ...
    def call_in_loop(self, callback: Callable[[], None]) -> None: ...
    def is_closed(self) -> bool: ...
    async def park(self, operation: Operation) -> None: ...

    # Where a call may be cancelled although it will not wait: None where nowhere.
    entry: Callable[[], Awaitable[None]] | None

    async def checkpoint(self) -> None:
        """Let others run; a cancel is delivered here."""

    async def give_turn(self) -> None:
        """Let others run, after the work is done."""


class _AsyncioLoop:
    turn = 256
    entry: Callable[[], Awaitable[None]] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._loop.add_reader(fd, callback)

    def unwatch(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    async def park(self, operation: Operation) -> None:
        future = self._loop.create_future()

        def wake() -> None:
            if not future.done() and not self._loop.is_closed():
                future.set_result(None)

        operation.on_end.append(wake)
        await future

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    give_turn = checkpoint


class _TrioLoop:
    turn = 1  # in trio every call is a checkpoint

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        import trio

        self._token = token
        self._trio = trio  # at interpreter exit nothing can be imported
        self._aborted: trio.lowlevel.Abort = trio.lowlevel.Abort.SUCCEEDED
        self.entry: Callable[[], Awaitable[None]] | None = (
            trio.lowlevel.checkpoint_if_cancelled
        )
        self.checkpoint = trio.lowlevel.checkpoint
        self.give_turn = trio.lowlevel.cancel_shielded_checkpoint

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        async def wait_and_call() -> None:
            # It may be closed, and its number be another's, between two waits.
            with contextlib.suppress(self._trio.ClosedResourceError):
                while self._watching:
                    await self._trio.lowlevel.wait_readable(fd)
                    callback()

        self._watching = True
        self._trio.lowlevel.spawn_system_task(wait_and_call)

    def unwatch(self, fd: int) -> None:
        self._watching = False
        with contextlib.suppress(RuntimeError):  # the run is over
            self._trio.lowlevel.notify_closing(fd)

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self._token.run_sync_soon(callback)

    def is_closed(self) -> bool:
        try:
            self._token.run_sync_soon(lambda: None)
        except self._trio.RunFinishedError:
            return True
        return False

    async def park(self, operation: Operation) -> None:
        task = self._trio.lowlevel.current_task()

        def wake() -> None:
            self._trio.lowlevel.reschedule(task)

        def forget() -> None:
            if wake in operation.on_end:
                operation.on_end.remove(wake)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            forget()
            return self._aborted

        operation.on_end.append(wake)
        try:
            await self._trio.lowlevel.wait_task_rescheduled(abort)
        finally:  # a coroutine that is thrown away is no task's to wake
            forget()


class Waiter:
    """One event loop's port, shared by the streams of that loop."""

    def __init__(self, native_token: Any) -> None:
        self.native = native_token
        if isinstance(native_token, asyncio.AbstractEventLoop):
            self.loop: _Loop = _AsyncioLoop(native_token)
        else:
            self.loop = _TrioLoop(native_token)
        self.port = Port()
        self.users = 0
        self.entry = self.loop.entry
        self.checkpoint = self.loop.checkpoint
        self.give_turn = self.loop.give_turn
        self.loop.watch(self.port.fileno(), self.port.drain)

    @property
    def is_trio(self) -> bool:
        return isinstance(self.loop, _TrioLoop)

    async def wait(self, operation: Operation) -> None:
        """Return once the operation is done.  A cancel leaves the operation alone."""
        while not operation.done:
            await self.loop.park(operation)

    async def wait_shielded(
        self, operation: Operation, seconds: float | None = None
    ) -> None:
        """The same, and no cancel can interrupt it; it is delivered afterwards.

        After so many seconds it gives up.
        """
        cancelled: BaseException | None = None
        with anyio.move_on_after(seconds, shield=True) as scope:
            while not operation.done:
                try:
                    await self.loop.park(operation)
                except asyncio.CancelledError as error:  # noqa: PERF203
                    if scope.cancel_called:
                        raise
                    cancelled = error
        if cancelled is not None:
            raise cancelled

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run it in the loop's thread: now, if that is here or the loop is gone."""
        if self.loop.is_closed() or _current_native() is self.native:
            callback()
        else:
            with contextlib.suppress(RuntimeError):
                self.loop.call_in_loop(callback)

    def leave(self) -> None:
        """One stream fewer; the last one closes the port."""
        self.call_soon(self._leave)

    def _leave(self) -> None:
        self.users -= 1
        if self.users:
            return
        if _waiters.get(self.native) is self:
            del _waiters[self.native]
        if self.port.c is not None:  # else a garbage collector was here first
            self.port.drain()
            self.loop.unwatch(self.port.fileno())
            self.port.close()


# Weak: when a loop was closed with sends pending, nothing but the streams and tasks
# themselves may keep them, or they would never be collected.
_waiters: weakref.WeakValueDictionary[Any, Waiter] = weakref.WeakValueDictionary()


def _current_native() -> Any:
    loop = running_asyncio_loop()
    if loop is not None or "trio" not in sys.modules:
        return loop
    import trio

    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


def join() -> Waiter:
    """The waiter of the running loop, for one stream more."""
    native = _current_native() or current_token().native_token
    waiter = _waiters.get(native)
    if waiter is None:
        waiter = _waiters[native] = Waiter(native)
    waiter.users += 1
    return waiter


async def enter() -> None:
    """Deliver a cancel, where a loop wants that of calls too which will not wait."""
    if running_asyncio_loop() is None:
        await anyio.lowlevel.checkpoint_if_cancelled()


def has_loop() -> bool:
    """Does an event loop run in this thread?"""
    return _current_native() is not None


def is_current(waiter: Waiter) -> bool:
    """Is this the waiter of the loop that runs in this thread?"""
    return _current_native() is waiter.native


# ---- fork and exit ------------------------------------------------------------


def _stop() -> None:
    unsent = _native.unsent()
    if unsent:
        warnings.warn(
            f"{unsent:,} bytes were still queued at the end of the program and are "
            "lost: close the streams (aclose or async with) before it ends",
            ResourceWarning,
            stacklevel=1,
        )
    _native.stop()


atexit.register(_stop)
os.register_at_fork(after_in_child=_waiters.clear)
