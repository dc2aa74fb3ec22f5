"""The only file that sees cffi: pin buffers, build vectors, call C, unpin.

Who owns what.  An `Operation` pins the caller's buffers (a pinned bytearray cannot be
resized) from before the call into C until C says that they are the caller's again:
by the call's return value, by an event drained from the port, or by `cancel`.  Between
those, `Port.operations` keeps it alive, whatever becomes of the task or the stream.
"""

from __future__ import annotations

import array
import errno
import itertools
import mmap
import os
import select
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol, cast

from aiozerocopy import _azc  # type: ignore[attr-defined]
from aiozerocopy._errors import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer


class _Lib(Protocol):
    """The signatures of csrc/azc.h, for the type checker."""

    AZC_IN: int
    AZC_OUT: int
    AZC_OWN: int
    AZC_UNTRUSTED: int
    AZC_READS: int
    AZC_ZEROCOPY: int
    AZC_LENDS_NOTHING: int
    AZC_LENDS_TO_PIPE: int
    AZC_LENDS_TO_SOCKET: int
    AZC_DROPPED: int
    AZC_RESCUED: int
    AZC_LATER: int

    def azc_portable(self) -> int: ...
    def azc_port_open(self, out: Any) -> int: ...
    def azc_port_fd(self, port: Any) -> int: ...
    def azc_port_drain(self, port: Any, events: Any, most: int) -> int: ...
    def azc_port_close(self, port: Any) -> None: ...
    def azc_open(self, fd: int, flags: int, out: Any) -> int: ...
    def azc_open_opposite(self, channel: Any, out: Any) -> int: ...
    def azc_send_home(self, channel: Any, data: Any, n: int) -> int: ...
    def azc_set_home(self, channel: Any, port: Any, token: int, turn: int) -> None: ...
    def azc_sendv(
        self,
        channel: Any,
        port: Any,
        token: int,
        vec: Any,
        count: int,
        sizes: Any,
        nsizes: int,
    ) -> int: ...
    def azc_send_batch(
        self, channel: Any, data: Any, n: int, sizes: Any, nsizes: int
    ) -> int: ...
    def azc_recv(
        self, channel: Any, port: Any, token: int, data: Any, n: int, need: int
    ) -> int: ...
    def azc_cancel(self, channel: Any, token: int, limit: int, event: Any) -> int: ...
    def azc_close(self, channel: Any, port: Any, token: int) -> int: ...
    def azc_free(self, channel: Any) -> None: ...
    def azc_pool_open(self, slot_bytes: int, slots: int, out: Any) -> int: ...
    def azc_pool_slot(self, pool: Any, slot: int) -> Any: ...
    def azc_pool_bytes(self, pool: Any) -> int: ...
    def azc_pool_close(self, pool: Any) -> None: ...
    def azc_fd(self, channel: Any) -> int: ...
    def azc_shutdown(self, channel: Any) -> int: ...
    def azc_get_stats(self, channel: Any, stats: Any) -> int: ...
    def azc_stop(self, ms: int) -> int: ...
    def azc_fork_prepare(self) -> None: ...
    def azc_fork_parent(self) -> None: ...
    def azc_fork_child(self) -> None: ...


ffi = _azc.ffi
lib = cast("_Lib", _azc.lib)

IN: int = lib.AZC_IN
OUT: int = lib.AZC_OUT
OWN: int = lib.AZC_OWN
UNTRUSTED: int = lib.AZC_UNTRUSTED
READS: int = lib.AZC_READS
ZEROCOPY: int = lib.AZC_ZEROCOPY
PORTABLE: bool = bool(lib.azc_portable())

_EVENTS = 64  # taken from a port in one call
# Seconds that closing waits for a thread of ours.  It is back in microseconds, unless
# a peer holds it up in a system call: then it closes the fd when it is back.  It is
# worth more patience if it has somebody's memory.
_CLOSING, _CLOSING_IN_USE = 0.1, 1.0
_IN_PROGRESS = -errno.EINPROGRESS
_tokens = itertools.count(1)
_from_buffer = ffi.from_buffer
_azc_send_home = lib.azc_send_home
_azc_send_batch = lib.azc_send_batch
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


# ---- pinning ------------------------------------------------------------------

_STRIDED = (
    "the memory is not C-contiguous (a strided, transposed or Fortran-ordered view): "
    "send numpy.ascontiguousarray(...) or another contiguous copy"
)

_CHANGED = "a message changed its size while it waited"


class Lease:
    """What has its memory in a view: accepted wherever a buffer is.

    (A class can be a buffer itself from Python 3.12 on only.)
    """

    @property
    def view(self) -> memoryview:
        """The memory; a view of it, wherever it is, keeps it borrowed."""
        raise NotImplementedError


# These can hold nothing but plain bytes.
_PLAIN = frozenset((bytes, bytearray, mmap.mmap))


def _refuse_objects(data: object) -> None:
    """An array of Python objects is an array of addresses: never send those."""
    if type(data) is memoryview:
        holds_objects = data.itemsize > 1 and "O" in data.format
    else:
        holds_objects = getattr(getattr(data, "dtype", None), "hasobject", False)
    if holds_objects:
        raise TypeError("an array of Python objects has no bytes to send")


def pin(data: Buffer) -> Any:
    """Borrow the memory of ``data`` until the result is released.

    Raises:
        TypeError: not a bytes-like object, or one that holds Python objects.
        BufferError: its memory is not C-contiguous.
        ValueError: a released memoryview.
    """
    if type(data) not in _PLAIN:
        if isinstance(data, Lease):
            data = data.view
        _refuse_objects(data)
    try:
        return _from_buffer(data)
    except (TypeError, ValueError, BufferError) as error:
        raise _refusal(data, error) from None


def pin_writable(data: Buffer) -> Any:
    """The same for memory to receive into.

    Raises: as `pin`; BufferError for read-only memory too.
    """
    if isinstance(data, Lease):
        data = data.view
    _refuse_objects(data)
    try:
        return _from_buffer(data, require_writable=True)
    except (TypeError, ValueError, BufferError) as error:
        raise _refusal(data, error) from None


def _refusal(data: object, error: Exception) -> Exception:
    """What a user can do about a buffer that cffi did not take."""
    if "contiguous" in str(error):
        return BufferError(_STRIDED)
    if "read-only" in str(error):  # NumPy says ValueError
        return BufferError("the memory is read-only: nothing can be received there")
    if not isinstance(error, TypeError):
        return error
    hint = " (encode it first)" if isinstance(data, str) else ""
    kind = type(data).__name__
    return TypeError(f"a bytes-like object is required, not {kind!r}{hint}")


def nbytes(data: Buffer) -> int:
    """The size of a bytes-like object; ``len`` would count rows or items."""
    kind = type(data)
    if kind is bytes or kind is bytearray:
        return len(cast("bytes", data))
    if kind is memoryview:
        plain = cast("memoryview", data)
        if plain.itemsize == 1 and plain.c_contiguous:
            return plain.nbytes
    view = pin(data)  # memoryview would refuse an array of datetime64
    size = len(view)
    ffi.release(view)
    return size


# ---- ports and operations -----------------------------------------------------


class Operation:
    """One message on its way, or one receive; ``done`` once its buffers are free."""

    __slots__ = (
        "done",
        "moved",
        "on_end",
        "outcome",
        "pins",
        "status",
        "token",
        "total",
    )

    def __init__(self, token: int, pins: Sequence[Any], total: int) -> None:
        self.token = token
        self.pins = pins
        self.total = total
        self.done = False
        self.moved = 0
        self.status = 0
        self.outcome = 0
        self.on_end: list[Callable[[], None]] = []

    def end(self, moved: int, status: int, outcome: int) -> None:
        """The buffers are the caller's again: unpin first, then tell."""
        if self.done:
            return
        self.moved, self.status, self.outcome = moved, status, outcome
        self.unpin()
        self.done = True
        listeners, self.on_end = self.on_end, []
        for tell in listeners:
            tell()

    def unpin(self) -> None:
        for view in self.pins:
            if type(view) is not bytes:
                ffi.release(view)
        self.pins = ()

    def raise_if_failed(self) -> None:
        if self.status < 0:
            raise error_of(self.status, self.moved, self.total)


class Reception(Operation):
    """One receive.  What arrived is still wanted at the end: the caller unpins."""

    __slots__ = ()

    def unpin(self) -> None:
        self.pins = ()


class Pinned:
    """``with Pinned(buffer) as view``: the memory of a writable buffer, borrowed."""

    def __init__(self, buffer: Buffer) -> None:
        self._view = pin_writable(buffer)

    def __enter__(self) -> Any:
        return self._view

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A coroutine that is thrown away may leave a system call behind which still
        # has the memory: then the operation keeps it until that call is over.
        if kind is not GeneratorExit:
            ffi.release(self._view)


_stranded: set[Port] = set()


class Port:
    """Where one event loop, or one waiting thread, hears of operations that ended."""

    def __init__(self) -> None:
        out = ffi.new("azc_port **")
        _check(lib.azc_port_open(out))
        self.c = out[0]
        self.operations: dict[int, Any] = {}
        # What is just being handed to C, under the token that it will have if it
        # must be queued.  It is here before the call and leaves after it, so that a
        # signal's exception in between cannot lose it.
        self.submitting: Any = None
        self.token = next(_tokens)
        self._events = ffi.new("azc_event[]", _EVENTS)

    def fileno(self) -> int:
        return lib.azc_port_fd(self.c)

    def recover(self) -> None:
        """A signal's exception has hit an earlier call: its event may still come."""
        self.queue(self.submitting)

    def queue(self, operation: Any) -> None:
        """Keep what was submitted until its event comes."""
        self.operations[self.token] = operation
        self.token = next(_tokens)
        self.submitting = None

    def drain(self) -> None:
        """End every operation whose event has come."""
        if self.c is None:
            return
        count = _EVENTS
        while count == _EVENTS:
            count = lib.azc_port_drain(self.c, self._events, _EVENTS)
            ended = [
                (event.token, event.bytes, event.status, event.outcome)
                for event in self._events[0:count]
            ]
            for token, moved, status, outcome in ended:
                operation = self.operations.pop(token, None)
                if isinstance(operation, Operation):
                    operation.end(moved, status, outcome)

    def wait(self, operation: Operation, seconds: float | None = None) -> bool:
        """Block this thread until the operation is done, or the time is over."""
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

    def close(self) -> None:
        """Close, unless a system call still has somebody's memory: then never."""
        self.drain()
        # (that of a close has nobody's)
        if any(getattr(entry, "pins", True) for entry in self.operations.values()):
            _stranded.add(self)
        elif self.c is not None:
            c, self.c = self.c, None
            lib.azc_port_close(c)
            _stranded.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "c") and not sys.is_finalizing():
            self.close()


def _check(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


# ---- channels -----------------------------------------------------------------


class Stats(Protocol):
    """The counters of a channel: azc_stats in csrc/azc.h."""

    bytes: int
    messages: int
    calls: int
    waits: int
    immediate: int
    rescued: int
    queued_bytes: int
    queued: int
    error: int
    threaded: int
    lent: int
    lends: int


_LANES = {
    lib.AZC_LENDS_NOTHING: "copy",
    lib.AZC_LENDS_TO_PIPE: "vmsplice",
    lib.AZC_LENDS_TO_SOCKET: "zerocopy",
}


def lane_of(stats: Stats) -> str:
    """How a pool's bytes travel, once they have: see `SendStream.lane`."""
    return _LANES[stats.lends] if stats.lent else "copy"


class Channel:
    """One fd, one direction.  Owns the fd from here on, unless this raises."""

    def __init__(self, fd: int, flags: int) -> None:
        out = ffi.new("azc_channel **")
        _check(lib.azc_open(fd, flags, out))
        self._adopt(out[0])

    def _adopt(self, c: Any) -> None:
        # Freed when nobody refers to it: neither we nor a call in another thread.
        self.c = ffi.gc(c, lib.azc_free)
        self._submitting: Any = None
        self.generation = generation
        self.closing = False
        _alive.add(self)

    def opposite(self) -> Channel:
        """The channel of the other direction over the same fd."""
        out = ffi.new("azc_channel **")
        _check(lib.azc_open_opposite(self.c, out))
        channel = Channel.__new__(Channel)
        channel._adopt(out[0])
        return channel

    @property
    def inherited(self) -> bool:
        """True in a forked child: the channel is the parent's, and dead here."""
        return self.generation != generation

    def fileno(self) -> int:
        return -1 if self.closing else lib.azc_fd(self.c)

    def stats(self) -> Stats:
        c = self.c  # another thread may let go of it meanwhile
        if c is None:
            return self._last
        stats = ffi.new("azc_stats *")
        lib.azc_get_stats(c, stats)
        return cast("Stats", stats)

    def refused(self, status: int, total: int) -> Exception:
        """The exception for a call that was not even queued."""
        return error_of(status, 0, total, broken=self.stats().error != 0)

    # -- submitting: each returns the operation if it is not over ------------------

    def settle(self, port: Port, turn: int) -> None:
        """Make this the port for `send` and `send_joined`, which return 1 instead of 0
        when it is others' turn: after so many that were over at once."""
        self.home, self._turn, self._token = port, turn, next(_tokens)
        lib.azc_set_home(self.c, port.c, self._token, turn)

    def send(self, data: Buffer) -> Operation | int:
        """Send one buffer as one message, with as few steps as possible."""
        view: Any = data
        if type(data) is not bytes:
            if type(data) is memoryview and data.itemsize == 1 and data.c_contiguous:
                view = _from_buffer(data)  # the usual kind needs no second look
            else:
                view = pin(data)
        if self._submitting is not None:
            self._requeue(self._submitting)
        self._submitting = view  # for the same reason as in Port
        result = _azc_send_home(self.c, view, len(view))
        if result < 0:
            return self._begun(view, result)
        self._submitting = None
        return result

    def send_joined(
        self, messages: Iterable[Buffer], sizes: Sequence[int], total: int
    ) -> Operation | int:
        """Send messages of those sizes from one block, which is a copy.

        Raises: as `send_pieces`.
        """
        block = b"".join(messages)
        if len(block) != total:
            raise ValueError(_CHANGED)
        marks = _from_buffer("uint64_t[]", array.array("Q", sizes))
        if self._submitting is not None:
            self._requeue(self._submitting)
        self._submitting = block
        result = _azc_send_batch(self.c, block, total, marks, len(sizes))
        if result < 0:
            return self._begun(block, result)
        self._submitting = None
        return result

    def _begun(self, view: Any, result: int) -> Operation:
        operation = Operation(self._token, [view], len(view))
        if result == _IN_PROGRESS:
            self._requeue(operation)
            return operation
        self._submitting = None
        raise self._refuse(operation, result)

    def _requeue(self, operation: Any) -> None:
        self.home.operations[self._token] = operation
        self.settle(self.home, self._turn)
        self._submitting = None

    def send_pieces(
        self, port: Port, pieces: Iterable[Buffer], sizes: Sequence[int] = ()
    ) -> Operation | int:
        """Send buffers as one message, or as messages of those sizes; returns the
        bytes if it is over.

        Raises:
            ValueError: the buffers are of other sizes together.
        """
        views: list[Any] = []
        try:
            views.extend(map(pin, pieces))
            total = sum(map(len, views))
            if sizes and sum(sizes) != total:
                raise ValueError(_CHANGED)
        except BaseException:
            for view in views:
                ffi.release(view)
            raise
        vec = ffi.new("struct iovec[]", [(view, len(view)) for view in views])
        if port.submitting is not None:
            port.recover()
        port.submitting = views
        marks = ffi.new("uint64_t[]", sizes) if sizes else ffi.NULL
        result = lib.azc_sendv(
            self.c, port.c, port.token, vec, len(views), marks, len(sizes)
        )
        if result < 0:
            return self._queued(port, Operation(port.token, views, total), result)
        port.submitting = None
        for view in views:
            ffi.release(view)
        return result

    def receive(self, port: Port, view: Any, start: int, need: int) -> Operation | int:
        """Receive into a pinned view from ``start`` on, at least ``need`` bytes.

        Returns their number if it is over, else the operation.
        """
        if port.submitting is not None:
            port.recover()
        port.submitting = view
        n = len(view) - start
        result = lib.azc_recv(self.c, port.c, port.token, view + start, n, need)
        if result >= 0:
            port.submitting = None
            return result
        operation = Reception(port.token, (view,), n)
        return self._queued(port, operation, result)

    def _queued(self, port: Port, operation: Operation, result: int) -> Operation:
        if result == _IN_PROGRESS:
            port.queue(operation)
            return operation
        port.submitting = None
        raise self._refuse(operation, result)

    def _refuse(self, operation: Operation, status: int) -> Exception:
        operation.unpin()
        return self.refused(status, operation.total)

    # -- giving up ----------------------------------------------------------------

    def cancel(self, port: Port, operation: Operation, limit: int) -> bool:
        """Take the buffers back.  False: its event will come, and only then."""
        if self.closing:
            return False
        event = ffi.new("azc_event *")
        result = lib.azc_cancel(self.c, operation.token, limit, event)
        if result in (lib.AZC_LATER, -errno.ENOENT):
            return False
        port.operations.pop(operation.token, None)
        operation.end(event.bytes, event.status, event.outcome)
        return True

    def close(self, port: Port) -> Operation | None:
        """Close the fd; what is queued fails.  None when it is closed."""
        if port.submitting is not None:
            port.recover()
        operation = port.submitting = Operation(port.token, (), 0)
        self.closing = True
        if lib.azc_close(self.c, port.c, port.token) == _IN_PROGRESS:
            port.queue(operation)
            return operation
        port.submitting = None
        return None

    def patience(self) -> float:
        """How many seconds the end of closing is worth waiting for."""
        return _CLOSING_IN_USE if self.stats().queued else _CLOSING

    def close_now(self) -> None:
        """Close from anywhere, without a loop; `patience` says how long it may take."""
        try:
            port = Port()
        except OSError:  # no fd is left: then nobody waits for the thread
            self.closing = True
            lib.azc_close(self.c, ffi.NULL, 0)
        else:
            operation = self.close(port)
            if operation is not None and not port.wait(operation, self.patience()):
                del port.operations[operation.token]  # it has nobody's memory
            port.close()
        self.free()

    def free(self) -> None:
        """Let go of a closed channel; its thread ends here."""
        if self.c is not None:
            self._last = self.stats()
            self.c = None
            _alive.discard(self)

    def shutdown(self) -> None:
        """End the sending side of a socket."""
        result = lib.azc_shutdown(self.c)
        if result < 0:
            raise self.refused(result, 0)


def scratch(n: int) -> Any:
    """Memory of our own to receive into, not cleared."""
    return _allocate("char[]", n)


def content(view: Any, n: int) -> bytes:
    """The first n bytes of a pinned view or of scratch memory."""
    return bytes(ffi.buffer(view, n))


def fill(view: Any, data: memoryview) -> None:
    """Copy into a pinned view."""
    ffi.memmove(view, data, len(data))


# ---- memory of our own --------------------------------------------------------


class Memory:
    """The slots of a pool: mapped until nothing refers to any of them."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        out = ffi.new("azc_pool **")
        _check(lib.azc_pool_open(slot_bytes, slots, out))
        self._c = ffi.gc(out[0], lib.azc_pool_close)
        self.slot_bytes = slot_bytes
        self.nbytes = lib.azc_pool_bytes(self._c)

    def view(self, slot: int, on_last_release: Callable[[], None]) -> memoryview:
        """A view of a slot.  The callback runs when it and all made of it are gone."""

        def release(_: object, memory: Memory = self) -> None:
            on_last_release()  # (the memory was kept until here)

        block = ffi.gc(ffi.cast("char *", lib.azc_pool_slot(self._c, slot)), release)
        return memoryview(ffi.buffer(block, self.slot_bytes)).cast("B")


def finalizing_view(data: Buffer, finalizer: Callable[[], None]) -> memoryview:
    """A view of other memory; the callback runs when all views of it are gone.

    Raises: as `pin`.
    """
    pinned = pin(data)

    def release(_: object) -> None:
        ffi.release(pinned)
        finalizer()

    block = ffi.gc(ffi.cast("char *", pinned), release)
    return memoryview(ffi.buffer(block, len(pinned))).cast("B")


# ---- fork and exit ------------------------------------------------------------

generation = 0  # how many forks lie between this process and the first
_alive: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork() -> None:
    global generation
    generation += 1
    lib.azc_fork_child()
    _alive.clear()


os.register_at_fork(
    before=lib.azc_fork_prepare,
    after_in_parent=lib.azc_fork_parent,
    after_in_child=_after_fork,
)


def unsent() -> int:
    """Bytes that are queued in all channels of this process."""
    return sum(channel.stats().queued_bytes for channel in list(_alive))


def stop(seconds: float = 1.0) -> None:
    """Close every channel and wait until no thread reads borrowed memory."""
    lib.azc_stop(int(seconds * 1000))
