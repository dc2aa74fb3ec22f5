"""A thread in place of an event loop: it waits for what a stream's coroutine awaits.

A stream's coroutines run here as on a loop: one at a time (`ThreadWaiter.lock`), until
they end or await something.  Then the lock is free for other threads, while this one
waits.  An exception that comes meanwhile, such as Ctrl-C, closes the coroutine, which
takes its buffers back.

Of the threads that wait on one stream, one listens to C: only this one acknowledges the
port's events.  Then it wakes the others, and one of them listens next.  A thread that
does not listen checks its condition again after its gate is in the list, so that it
misses nothing.

Once a stream has left, its port is closed by the thread that listens: another thread
would close the fd for which the listener waits, and take the event that wakes it.

An operation may be ended by two threads at once: the listener, and one that takes it
back.  They do that under the port's lock, since the buffers are free only when the
first of the two has released them.

An exception of a signal handler may come at any line of the main thread.  If that
thread was the listener, it has stopped listening when the exception leaves.
"""

from __future__ import annotations

import select
import threading
import time
import types
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aiozerocopy._core.borrows import Operation, Port, or_undo_now
from aiozerocopy._core.lock import Lock
from aiozerocopy._core.waiter import Waiter, _AsyncioLoop, has_loop
from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from aiozerocopy._core.lifetime import Bound

    Question = Callable[[], bool]  # returns whether the condition is true by now

T = TypeVar("T")

_NO_LOOP: Any = None
_NEVER = (1 << 32) - 1  # calls before one yields to a loop


def refuse_in_a_loop() -> None:
    """Raise in a thread whose event loop runs."""
    if has_loop():
        raise RuntimeError(
            "this thread runs an event loop, which a blocking call would stop: await "
            "the call of the same name in aiozerocopy, or call from another thread"
        )


@types.coroutine
def _until(ready: Question, seconds: float | None = None) -> Generator[Any, None, None]:
    if not ready():
        yield ready, seconds


async def _go_on() -> None:
    """Do nothing: there is no other task that could run."""


def _step(coroutine: Coroutine[Any, Any, object]) -> tuple[BaseException | None, Any]:
    """Continue a coroutine; return its end if it has ended, or else what it awaits.

    The end must not go through a lock's ``with`` as an exception: Python 3.10 may run
    signal handlers, which raise, before the ``with`` frees the lock.
    """
    try:
        return None, coroutine.send(None)
    except BaseException as end:
        return end, None


class ThreadWaiter(Waiter):
    """Binds a stream to no loop, so that any thread may use it."""

    port: SharedPort

    def __init__(self, stream: Bound) -> None:
        """Bind a new stream, while no other thread knows it."""
        self.loop = _AsyncioLoop(_NO_LOOP)  # "here" is every thread without a loop
        self.port = SharedPort()
        self.lock = Lock()
        self.entry = None
        self.checkpoint = self.yield_to_loop = _go_on
        stream._waiter, stream._budget, stream._loop = self, _NEVER, _NO_LOOP
        if isinstance(stream, SendStream):
            stream._out.bind_port(self.port, _NEVER)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the stream to its end."""
        try:
            while True:
                with self.lock:
                    end, awaited = _step(coroutine)
                if end is not None:
                    try:
                        if not isinstance(end, StopIteration):
                            raise end
                        result: T = end.value
                        return result
                    finally:
                        del end  # (it refers to this frame: a cycle)
                self.port.until(*awaited)
        except BaseException:
            close = partial(self._close, coroutine)
            or_undo_now(close, close)
            raise

    def _close(self, coroutine: Coroutine[Any, Any, object]) -> None:
        with self.lock:
            coroutine.close()

    def leave(self, key: object) -> None:
        self.port.leave()

    async def wait(self, operation: Operation) -> None:
        await _until(lambda: operation.done)

    async def wait_for_room(self, operation: Operation) -> None:
        await _until(lambda: operation.has_room or operation.done)

    async def wait_shielded(
        self, operation: Operation, seconds: float | None = None
    ) -> None:
        await _until(lambda: operation.done, seconds)


class SharedPort(Port):
    """A port that several threads wait for."""

    def __init__(self) -> None:
        # Guards the next two, and the end of operations; first, since `close` needs it.
        self._lock = Lock()
        self._listener: object = None  # a token of the thread that listens
        self._gates: list[threading.Lock] = []  # of the threads that do not listen
        self._is_left = False
        super().__init__()
        self._ready = select.poll()
        self._ready.register(self.fileno(), select.POLLIN)

    def leave(self) -> None:
        """Close the port of a stream that has ended, now or when the listener stops.

        It stays open while C has an operation for which a thread could wait.
        """
        self._is_left = True
        self.drain()

    def until(self, ready: Question, seconds: float | None = None) -> None:
        """Block this thread until ``ready()``, for ``seconds`` at most."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if left == 0:
                return
            gate = threading.Lock()
            gate.acquire()
            if not self._listen(gate, ready, left) and not ready():
                gate.acquire(timeout=left)

    def wait(self, operation: Operation, seconds: float | None = None) -> bool:
        self.until(lambda: operation.done, seconds)
        return operation.done

    def drain(self) -> None:
        """End every operation whose event has come.

        If a thread listens, leave the events to it, too: they will wake it.
        """
        if not self._listen(None, lambda: True, 0):
            with self._lock:
                self.look()

    def close(self) -> bool:
        with self._lock:
            return super().close()

    def _listen(
        self, gate: threading.Lock | None, ready: Question, seconds: float
    ) -> bool:
        """Listen, if no thread does; otherwise give the gate to the one that does."""
        mine: object = None
        me = object()
        try:
            with self._lock:
                if self._listener is None:
                    mine = self._listener = me
                elif gate is not None:
                    self._gates.append(gate)
            if mine:
                self._end_operations()
                if not ready():
                    self._wake()
                    self._ready.poll(None if seconds < 0 else seconds * 1000)
                    self._end_operations()
        finally:
            if mine:  # (a signal handler may raise where `or_undo_now` is entered)
                try:
                    self._stop(mine)
                except BaseException:
                    self._stop(mine)
                    raise
        return bool(mine)

    def _end_operations(self) -> None:
        with self._lock:
            super().drain()

    def _stop(self, mine: object) -> None:
        """Let another thread listen; may be called twice, when one does already."""
        is_left = self._is_left
        if is_left:
            self.close()
        with self._lock:
            if self._listener is mine:
                self._listener = None
        self._wake()
        if self._is_left and not is_left:  # (`leave` found that this thread listened)
            self.drain()

    def _wake(self) -> None:
        """Let the other threads check their conditions again."""
        with self._lock:
            for gate in self._gates:
                if gate.locked():
                    gate.release()
            self._gates.clear()
