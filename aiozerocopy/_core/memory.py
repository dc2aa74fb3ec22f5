"""A pool's slots, and views that report when the last of them is gone.

A slot may be leased again once no view of it exists.  A finalizer of a view would be
too early: the garbage collector calls the finalizers of all objects in a cycle
(``__del__``, weak references' callbacks, `ffi.gc`) while the objects can still be used,
and then the slot would have two owners.  So a lease ends with an object that the
collector does not track, although its class has a ``__del__``.  That runs when the last
reference goes, which is when the memory of the last view is deallocated.

    memoryview -> cffi's buffer -> cffi's pin -> ctypes object -> `_Lease`, untracked

All leases work this way: pools, rings, captured and rendered pictures, and
`finalizing_buffer`.

A lease begins when it is entered into `_leases` and ends when it is removed.  Each is
one step, which no other thread and no signal handler can split.  Its key is never used
again: a `_Lease` that is deallocated late, in another thread, ends no other lease.  If
several threads want one slot, C gives it to one of them.  If a signal handler's
exception interrupts ``__del__``, `is_over` finds the lease without holders when a slot
is wanted next, or `sweep` does when a stream is opened.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import itertools
import mmap
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aiozerocopy._core.binding import check, ffi, lib
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.leases import AnyBuffer


class _Terms(NamedTuple):
    """The objects that a lease refers to."""

    life: object  # held by the views: its reference count shows whether any exist
    on_end: Callable[[], object]


# By key.
_leases: dict[int, _Terms] = {}
_numbers = itertools.count(1)
exchange, look = lib.azc_exchange, lib.azc_look


# Instances of a subclass of int are tracked unless this is called for each.
_untrack = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("PyObject_GC_UnTrack", ctypes.pythonapi)
)


class _Lease(int):
    """Ends the lease of its key when it is deallocated, not before: it is untracked."""

    __slots__ = ()

    # (a default argument is still there at interpreter exit, when globals are gone)

    def __del__(self, leases: dict[int, _Terms] = _leases) -> None:
        terms = leases.pop(self, None)
        if terms is not None:
            terms.on_end()


def _holders(terms: _Terms) -> int:
    return sys.getrefcount(terms.life)


_NOBODY = _holders(_Terms(object(), int))


def is_over(key: int) -> bool:
    """Return whether the lease has ended; if its end was interrupted, end it now."""
    terms = _leases.get(key)
    if terms is not None and _holders(terms) == _NOBODY:
        _Lease(key)  # (its ``__del__`` ends the lease)
    return key not in _leases


class _Start(ctypes.c_ubyte):
    """The first byte of some memory, with attributes that live as long as its views."""

    __slots__ = ("lease", "life")
    lease: _Lease
    life: object


def _view(key: int, terms: _Terms, address: int, nbytes: int) -> memoryview:
    """Return a view of memory; its lease ends when it and all views of it are gone.

    The objects that ``on_end`` refers to are kept until then.
    """
    start = _Start.from_address(address)
    # (Python runs signal handlers after a call, but not while it unpacks: so no
    # handler's exception can come before the assignment, and end the lease)
    (lease,) = map(_Lease, (key,))
    _untrack(lease)
    start.lease = lease
    start.life = terms.life
    return memoryview(ffi.buffer(ffi.from_buffer(start), nbytes))


def sweep() -> None:
    """End every lease whose end was interrupted."""
    for key in list(_leases):
        is_over(key)


class Slots:
    """The slots of a pool, leased or free; may be used from any thread."""

    def __init__(self, count: int, *, in_circle: bool = True) -> None:
        self._in_circle = in_circle
        self._keys = ffi.new("uint64_t[]", count)  # of each slot's last lease; 0: none
        self._next = 0

    def free(self) -> int:
        """Return how many slots are free."""
        keys = self._keys
        return sum(is_over(look(keys + i)) for i in range(len(keys)))

    def claim(self, terms: _Terms) -> tuple[int, int] | None:
        """Lease a free slot; return the lease's key and the slot's number.

        In a circle, the search begins after the slot that was leased last; else with
        that slot, whose memory is still in the processor's caches.
        """
        keys, count = self._keys, len(self._keys)
        for i in range(self._next, self._next + count):
            last = look(keys + i % count)
            if not is_over(last):
                continue
            key = next(_numbers)
            _leases[key] = terms  # (first: `is_over` is true of a key that is absent)
            if exchange(keys + i % count, last, key):
                self._next = (i + self._in_circle) % count
                return key, i % count
            _leases.pop(key)  # another thread, or a signal's handler, was quicker
        return None


class Memory:
    """The memory of a pool's slots, mapped until nothing refers to any of them."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self._number = ffi.new("azc_id *")
        check(lib.azc_pool_open(slot_bytes, slots, self._number))
        self.slot_bytes = slot_bytes
        self.nbytes = self._at(slots) - self._at(0)
        self.slots = Slots(slots)

    def lease(self, on_end: Callable[[], object]) -> memoryview | None:
        """Return a view of a free slot, or None.  When it and all views made of it are
        gone, the slot is free again, and ``on_end`` is called.

        Raises:
            ValueError: a finalizer called this after the memory's own finalizer.
        """
        life = object()  # (held here, too, until the view holds it)
        terms = _Terms(life, partial(self._end, on_end))
        claimed = self.slots.claim(terms)
        if claimed is None:
            return None
        key, index = claimed
        address = self._at(index)
        if not address:
            _Lease(key)
            raise ValueError("the pool's memory was given back")
        return _view(key, terms, address, self.slot_bytes)

    def number_of(self, view: memoryview) -> int:
        """Return the number of a view's slot."""
        with pin(view) as start:
            address = _address(start)
        return next(i for i in itertools.count() if self._at(i) == address)

    def _at(self, index: int) -> int:
        """Return the address of a slot; 0 once the memory was given back."""
        return _address(lib.azc_pool_slot(self._number[0], index))

    def _end(self, on_end: Callable[[], object]) -> None:
        on_end()  # (this method keeps the memory until here)

    # (the default argument as in `_Lease`)
    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        number = getattr(self, "_number", None)
        if number is not None and not is_exiting():
            lib.azc_pool_close(number[0])


class Claim:
    """A lease that begins before its memory is known.

    It ends with its view and all views made of it, or with this object if it has none.
    """

    __slots__ = ("_life", "_terms", "key")

    def __init__(self, on_end: Callable[[], object]) -> None:
        """The objects that ``on_end`` refers to are kept until it was called."""
        self.key: int = next(_numbers)  # for `is_over`
        self._life = object()  # (held here, too, as long as there may be a view)
        self._terms = _Terms(self._life, on_end)
        _leases[self.key] = self._terms

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return a view; call this once.  Read-only memory must not be written."""
        return _view(self.key, self._terms, address, nbytes)

    # (the default arguments as in `_Lease`)
    def __del__(self, end: Callable[[int], bool] = is_over) -> None:
        key = getattr(self, "key", None)
        if key is not None:
            self._life = None
            end(key)


# (before Python 3.13 a mapping keeps an fd of its own)
_NO_FD: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class FileMemory(Memory):
    """Memory in a file without a name, which another process may map and write to.

    The file cannot shrink, so all slots stay readable.  Its pages are never lent to a
    pipe's reader, since they could not be taken back.
    """

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.stride = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.nbytes = self.stride * slots
        self.slots = Slots(slots, in_circle=False)
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        # (C passes the fd on: no exception in between can lose it.)
        made = map(os.memfd_create, ["aiozerocopy"], [flags])
        (self.file,) = map(io.FileIO, made, ["r+"])
        try:
            os.ftruncate(fd := self.file.fileno(), self.nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            self._mapping = mmap.mmap(fd, self.nbytes, **_NO_FD)
            with pin(self._mapping) as start:
                self._start = _address(start)
        except BaseException:
            self.file.close()  # (if this succeeds, the caller closes it)
            raise

    def _at(self, index: int) -> int:
        return self._start + index * self.stride


def finalizing_view(data: AnyBuffer, finalizer: Callable[[], object]) -> memoryview:
    """Return a view of ``data``; the callback runs when all views of it are gone.

    Raises: as `pin`.
    """
    pinned = pin(data)

    def release() -> None:
        ffi.release(pinned)
        finalizer()

    return Claim(release).view(_address(pinned), len(pinned))


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
