"""Waiting for a change, and for a call's turn."""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import anyio

from aiozerocopy._core.waiter import current_loop, enter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

LOOK_AGAIN = 0.1  # seconds
_has_gil = getattr(sys, "_is_gil_enabled", lambda: True)


class Change:
    """Wakes all tasks that wait for it; each then checks its condition again.

    It happens in the loop's own thread.  An exception of a signal handler may prevent
    it; then the tasks still wait, and the next change wakes them.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def next(self) -> None:
        """Return at the next change."""
        if self._event is None or self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()

    def happen(self) -> None:
        """Wake all tasks that wait now."""
        if self._event is not None:
            self._event.set()


class RemoteChange:
    """A change that happens in any thread, even in a finalizer.

    It may happen just before a task begins to wait, so `wait` checks the condition
    itself, and again once it can be woken.  Tasks of several loops may wait.
    """

    __slots__ = ("__weakref__", "_wakes")

    def __init__(self) -> None:
        self._wakes: set[Callable[[], object]] = set()

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return once ``ready()`` is true; without a checkpoint if it is already.

        It checks at each change, and also every `LOOK_AGAIN` seconds: a signal handler
        that raises in a finalizer ends the finalizer, and no caller learns of that.

        Without the GIL, an object that is dropped by a thread other than its maker ends
        when the maker runs next.  If the maker sleeps, only the collector ends it: so
        that runs at the first check without a change, the second, the fourth...
        """
        if ready():
            return
        loop, looks = current_loop(), 0
        while True:
            event = anyio.Event()
            wake = partial(loop.call_in_loop, event.set)
            self._wakes.add(wake)
            try:
                if ready():
                    return
                with anyio.move_on_after(LOOK_AGAIN):
                    await event.wait()
                looks += not event.is_set()
                if not (event.is_set() or looks & looks - 1 or _has_gil()):
                    gc.collect()
            finally:
                self._wakes.discard(wake)

    def happen(self) -> None:
        """Wake all tasks that wait now."""
        for wake in list(self._wakes):
            with contextlib.suppress(RuntimeError):  # its loop has ended
                wake()


# ---- one call at a time -------------------------------------------------------------


class Turn:
    """A call's place in the line of one event loop; its methods may be called twice."""

    __slots__ = ("_line", "_wake")

    def __init__(self, line: Turns) -> None:
        self._line = line
        self._wake: Callable[[], object] | None = None

    def has_come(self) -> bool:
        return self._line[:1] == [self]

    def listen(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        if self.has_come():
            wake()

    def forget(self, _: Callable[[], object]) -> None:
        self._wake = None

    def end(self) -> None:
        """Leave the line, and wake the next."""
        if self in self._line:
            self._line.remove(self)
        if self._line and (wake := self._line[0]._wake):
            wake()


Turns = list[Turn]  # of the calls that wait; the first has its turn


class HasTurns(Protocol):
    _turns: Turns


S = TypeVar("S", bound=HasTurns)


def in_turn(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Let the calls of such methods of an object run one at a time, in their order.

    An exception of a signal handler ends the turn, at whichever line it comes.  A lock
    and ``async with`` would leave the lock taken if it comes between the block and
    ``__aexit__``.
    """

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        mine = Turn(self._turns)
        try:
            try:
                await enter()
                self._turns.append(mine)
                while not mine.has_come():
                    await current_loop().park(mine)
                return await method(self, *args, **kwargs)
            finally:
                mine.end()
        except BaseException:  # (as in `_core.borrows.and_end`, to save the calls)
            mine.end()
            raise

    return call
