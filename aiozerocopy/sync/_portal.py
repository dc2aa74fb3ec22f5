"""The portal: one event loop in a daemon thread, for calls that need a loop.

The states
    none       until the first call that needs it, and in a forked child, whose parent
               has it.  (The child does not touch its copy: the loop's fds are shared)
    running    from then on, even when it has nothing to do
    ended      at the interpreter's exit, which ends the daemon thread

The loop is made once.  If starting its thread failed or was interrupted, the next call
starts one.  Of several threads one runs the loop; the others end at once.

A thread that waits for a call sleeps on the call's gate.  Ctrl-C wakes the thread; it
cancels the call and waits for the call's end, so that the memory that the call had
borrowed is free.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from aiozerocopy._core.borrows import or_undo_now
from aiozerocopy._core.lock import Lock
from aiozerocopy.sync._waiting import refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[T]):
    """One call: a task of the portal, and a thread that waits for its end."""

    _task: asyncio.Task[T] | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # None: there is no portal

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._is_over = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def begin(self) -> None:
        """Start the task; runs in the portal's thread."""
        self._task = asyncio.get_running_loop().create_task(self._await())
        self._task.add_done_callback(self._end)

    async def _await(self) -> T:
        return await self._function()

    def _end(self, _: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._gate.release()

    def _cancel(self) -> None:
        """Cancel the task; runs in the portal's thread, after `begin` if at all."""
        if self._task is None:
            self._end(None)
        else:
            self._task.cancel()

    def wait(self) -> None:
        """Begin the call, and block until it has ended."""
        self._loop = _portal()
        self._loop.call_soon_threadsafe(self.begin)  # in this thread's context
        self._wait()

    def _wait(self) -> None:
        while not self._is_over:
            self._gate.acquire()

    def give_up(self) -> None:
        """Cancel the call, and wait for its end; if it succeeded, abort its result.

        May be called twice.
        """
        if self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._cancel)
        self._wait()
        if self._task and not self._task.cancelled() and self._task.exception() is None:
            abort = getattr(self._task.result(), "abort", None)
            if abort is not None:
                abort()

    def result(self) -> T:
        task, self._task = self._task, None
        assert task is not None
        if not task.cancelled() and task.exception() is None:
            return task.result()  # (if interrupted, the traceback keeps the result)
        try:
            return task.result()
        finally:
            del task  # (it keeps the exception, whose frames refer to it: a cycle)


def run(function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Call an async function in the portal, and block until it has returned::

        azc.sync.run(azc.relay, source, sink)

    Ctrl-C cancels it.  Streams that it opens belong to the portal's loop.

    Raises: as the function; RuntimeError in a thread whose event loop runs.
    """
    if not callable(function):
        raise TypeError(f"write run(function, *arguments), not run({function!r})")
    refuse_in_a_loop()
    call = _Call(lambda: function(*args, **options))
    or_undo_now(call.wait, call.give_up)
    return call.result()


# ---- the portal of this process ----------------------------------------------------

_lock = Lock()
_serving = threading.Lock()  # taken by the thread that runs the loop
# The last is ours; those before it are the loops of parent processes.
_loops: list[asyncio.AbstractEventLoop] = []
_inherited = 0  # how many are the parents'
_has_started = False


def _portal() -> asyncio.AbstractEventLoop:
    global _has_started
    with _lock:
        if len(_loops) == _inherited:
            _loops.append(asyncio.SelectorEventLoop())
        loop = _loops[-1]
        if not _has_started:
            threading.Thread(
                target=_serve, args=(loop,), name="aiozerocopy portal", daemon=True
            ).start()
            _has_started = True
        return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    if _serving.acquire(blocking=False):
        asyncio.set_event_loop(loop)
        loop.run_forever()


def _after_fork() -> None:
    global _lock, _serving, _inherited, _has_started
    _lock, _serving = Lock(), threading.Lock()
    _inherited, _has_started = len(_loops), False


os.register_at_fork(after_in_child=_after_fork)
