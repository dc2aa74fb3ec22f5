"""Memory that C has borrowed, and ports, which report when a borrow ends.

The states of an operation
    registered   its views are in `borrowed` and it is in `Port.operations`, both under
                 its token.  That happens before C is called.  So a signal handler may
                 raise between any two lines: C never has what is not registered
    queued       C has returned -EINPROGRESS or -EBUSY: one event will report the end
    over         C has said so: by the result of the call or of `Channel.take_back`, or
                 by an event.  Only then, or once C uses other memory for it
                 (`move_to_copy`), are the views removed from `borrowed`

`borrowed` is a global, so that a borrow lives as long as C may use the memory, even if
the program has dropped everything that asked for it.  It holds views only, and so keeps
no operation, future or stream alive.  `Port.operations` lives and dies with its port.

Noting an event twice is harmless, and C repeats each event until it is acknowledged: an
exception from a signal handler in `Port.drain` loses nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import select
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

from aiozerocopy._core.binding import check, constants, ffi, lib
from aiozerocopy._core.errors import error_of
from aiozerocopy._core.pins import unpin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_EVENTS = 64  # taken from a port in one call

# By token: the views of memory that C has, or may have.
borrowed: dict[int, list[Any]] = {}
# (at exit, a system call that a peer holds up may still use memory: never free it)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(borrowed))
_tokens = itertools.count(1)


def give_back(token: int, outcome: int = 0) -> None:
    """Release the views of an operation that is over; may be called twice.

    Pages that a reader may read for ever stay borrowed.
    """
    if outcome == constants.AZC_KEPT:
        return
    views = borrowed.get(token)
    if views is not None:
        unpin(views)
        borrowed.pop(token, None)


class Operation:
    """A message in transit, or a receive; ``done`` once its buffers are free.

    It is made, and so registered, before C is called: see above.
    """

    done: bool = False
    has_room: bool = False  # set when a `put` that waited is within the channel's limit
    is_newer: bool = False  # it carries another message now: see `move_to_copy`
    is_receive: bool = False
    sent: int = 0  # bytes that are out; of a receive, that have come
    taken: int = 0  # of a receive: bytes that had come before it
    total: int = 0
    status: int = 0  # or the -errno that it failed with
    outcome: int = 0

    def __init__(self, port: Port, views: list[Any]) -> None:
        token = next(_tokens)
        self.token: int = token
        self.views = views
        # (a dict as an ordered set; a listener that is interrupted is called again)
        self._listeners: dict[Callable[[], object], None] = {}
        port.operations[token] = self
        borrowed[token] = views

    def end(self, sent: int = 0, status: int = 0, outcome: int = 0) -> None:
        """Give the buffers back, then call the listeners."""
        self._give_back(outcome)
        if not self.done:
            self.sent, self.status, self.outcome = sent, status, outcome
            self.done = True
        if self._listeners:
            self._tell()

    def _give_back(self, outcome: int) -> None:
        give_back(self.token, outcome)

    def admit(self) -> None:
        """Note that the operation is queued within the limit now."""
        self.has_room = True
        self._tell()

    def moved_to_copy(self) -> None:
        """Keep only the last view, which C uses now; may be called twice."""
        self.views[:] = self.views[-1:]

    def listen(self, listener: Callable[[], object]) -> None:
        """Call the listener at the next change, or now if the operation is done."""
        self._listeners[listener] = None
        if self.done:
            self._tell()

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.pop(listener, None)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
            self._listeners.pop(listener, None)

    @property
    def was_dropped(self) -> bool:
        """Cancelled before a byte of it was out."""
        return self._was_cancelled(constants.AZC_DROPPED) and self.sent == 0

    @property
    def was_rescued(self) -> bool:
        """Cancelled, and the rest of the message follows from a copy."""
        return self._was_cancelled(constants.AZC_RESCUED)

    def _was_cancelled(self, outcome: int) -> bool:
        return self.status == -errno.ECANCELED and self.outcome == outcome

    def failure(self) -> Exception:
        return error_of(
            self.status,
            self.taken + self.sent,
            self.taken + self.total,
            broken=self.outcome != constants.AZC_REFUSED,
            at_least=self.outcome == constants.AZC_UNKNOWN,
            received=self.is_receive,
        )

    def raise_if_failed(self) -> None:
        if self.status:
            raise self.failure()


# ---- calls that are interrupted ----------------------------------------------------

# An interrupted call is undone before the exception goes on.  The handlers are nested,
# because a second exception may arrive while the first one is handled: so ``undo`` may
# be called twice.  (Hot paths repeat these lines, to save the calls.)


async def or_undo(
    call: Callable[[], Awaitable[T]], undo: Callable[[BaseException], Awaitable[object]]
) -> T:
    try:
        try:
            return await call()
        except BaseException as error:
            await undo(error)
            raise
    except BaseException as error:
        await undo(error)
        raise


async def and_end(call: Callable[[], Awaitable[T]], end: Callable[[], object]) -> T:
    """Await the call, then ``end`` it in any case, perhaps twice."""
    try:
        try:
            return await call()
        finally:
            end()
    except BaseException:
        end()
        raise


def or_undo_now(call: Callable[[], T], undo: Callable[[], object]) -> T:
    try:
        try:
            return call()
        except BaseException:
            undo()
            raise
    except BaseException:
        undo()
        raise


# ---- the port: where C reports operations that have ended ---------------------------


class Port:
    """Reports to one event loop, or waiting thread, which operations have ended."""

    def __init__(self) -> None:
        sweep()
        self.operations: dict[int, Operation] = {}
        # C stores the number itself: an exception after the call cannot lose it.
        self._number = ffi.new("azc_id *")
        check(lib.azc_port_open(self._number))
        self.id: int = self._number[0]

    def fileno(self) -> int:
        return lib.azc_port_fd(self.id)

    def receiving_fd(self) -> int:
        """Return an fd that is readable when the loop should receive; < 0: none."""
        return lib.azc_port_watch(self.id)

    def drain(self) -> None:
        """End every operation whose event has come; from any thread."""
        _drain(self._number[0], self.operations)

    def look(self) -> None:
        """Do as `drain`, but leave the events to the thread that drains the port."""
        count = most = _EVENTS
        while count == most:  # (those that were noted before come first, again)
            most *= 2
            events = ffi.new("azc_event[]", most)
            count = lib.azc_port_take(self.id, 0, events, most)
        for index in range(count):
            _note(events[index], self.operations)

    def forget(self, operation: Operation) -> None:
        """Forget an operation for which no event will come."""
        self.operations.pop(operation.token, None)

    def wait(self, operation: Operation, seconds: float | None = None) -> bool:
        """Block until the operation is done, or for ``seconds``; True if it is done."""
        deadline = None if seconds is None else time.monotonic() + seconds
        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN)
        while True:
            self.drain()
            if operation.done:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            ready.poll(None if left is None else left * 1000)

    def is_busy(self) -> bool:
        """Return whether C has an operation, or an event that was not drained."""
        return lib.azc_port_is_busy(self.id) == 1

    def close(self) -> bool:
        """Close the port unless it is busy; return whether that was done."""
        return _close(self._number[0], self.operations)

    # (a default argument is still there at interpreter exit, when globals are gone)
    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        number = getattr(self, "_number", None)
        if number is None or not number[0] or is_exiting():
            return
        if not self.close():
            _lost.append(number[0])


def _drain(port: int, operations: dict[int, Operation]) -> None:
    # (not shared between calls: several threads may drain one port)
    events = ffi.new("azc_event[]", _EVENTS)
    recorded = 0
    while (count := lib.azc_port_take(port, recorded, events, _EVENTS)) > 0:
        for event in events[0:count]:
            _note(event, operations)
        recorded = events[count - 1].sequence


def _note(event: Any, operations: dict[int, Operation]) -> None:
    token = event.token
    operation = operations.get(token)
    if event.status == constants.AZC_ROOM:
        if operation is not None:
            operation.admit()
    elif event.status == constants.AZC_COPIED:
        if operation is not None:
            operation.moved_to_copy()
    elif operation is None:
        give_back(token, event.outcome)
    else:
        operation.end(event.sent, event.status, event.outcome)
        operations.pop(token, None)


def _close(port: int, operations: dict[int, Operation]) -> bool:
    _drain(port, operations)
    return lib.azc_port_close(port) != -errno.EBUSY


# ---- ports without a loop ---------------------------------------------------------

# The ports that Python has dropped while they still had operations in C.
_lost: list[int] = []


def sweep() -> None:
    """Give back the memory of operations that ended on lost ports; close idle ones.

    Called now and then, from any thread.  A finalizer may call it while it runs: then a
    port is looked at twice, or not until the next time.
    """
    for port in _lost:
        if _close(port, {}):
            with contextlib.suppress(ValueError):
                _lost.remove(port)
