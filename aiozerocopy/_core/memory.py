"""Memory of our own: a pool's slots, and views that tell when the last is gone.

A view must tell its end when it is really deallocated.  A garbage collection calls the
``__del__`` of what it has found while all of that can still be used, and a slot that
came back then would have two owners.  So the end is told by a kind of object that the
collector does not know, since it cannot be part of a cycle: an int.

    memoryview -> cffi's buffer -> cffi's pin -> ctypes object -> `_Lease`, an int

Who makes a lease stands in `_leases`, and it is over when it does so no more: each is
one step, which no other thread and no signal's exception can split.  If one hits
``__del__`` before, the lease is found to be held by nobody when a slot is wanted next.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aiozerocopy._core.binding import check, ffi, lib
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


class _Terms(NamedTuple):
    """What a lease is about."""

    life: object  # dies with the lease's views, after its end was told
    on_end: Callable[[], object]


# By key.  (At interpreter exit a default argument has what a module has lost.)
_leases: dict[int, _Terms] = {}
_numbers = itertools.count(1)
_MOST_SLOTS = 1 << 32


class _Lease(int):
    """Tells its end when it is deallocated."""

    __slots__ = ()

    def __del__(self, leases: dict[int, _Terms] = _leases) -> None:
        terms = leases.pop(self, None)
        if terms is not None:
            terms.on_end()


def _holders(terms: _Terms) -> int:
    return sys.getrefcount(terms.life)


_NOBODY = _holders(_Terms(object(), int))


def _is_over(key: int) -> bool:
    terms = _leases.get(key)
    if terms is not None and _holders(terms) == _NOBODY:
        _Lease(key)  # its own end, or its beginning, was interrupted
    return key not in _leases


class _Start(ctypes.c_ubyte):
    """The first byte of some memory; it can hold what must live as long."""

    lease: _Lease
    life: object


def _view(key: int, terms: _Terms, address: int, nbytes: int) -> memoryview:
    """A view of memory.  The lease ends when it and all that is made of it are gone,
    and what ``on_end`` refers to is kept until then."""
    start = _Start.from_address(address)
    start.lease = _Lease(key)  # (what was set first goes first)
    start.life = terms.life
    return memoryview(ffi.buffer(ffi.from_buffer(start), nbytes))


class Slots:
    """Which slots of a memory are leased.  From any thread."""

    def __init__(self, count: int) -> None:
        self._first = next(_numbers) * _MOST_SLOTS
        self._keys = range(self._first, self._first + count)
        self._next = 0

    def free(self) -> int:
        """How many are free."""
        return sum(map(_is_over, self._keys))

    def claim(self, terms: _Terms) -> int | None:
        """The key of one that was free, and is leased now; by turns."""
        count = len(self._keys)
        for i in range(self._next, self._next + count):
            key = self._keys[i % count]
            if _is_over(key) and _leases.setdefault(key, terms) is terms:
                self._next = (i + 1) % count
                return key
        return None

    def index(self, key: int) -> int:
        return key - self._first


class Memory:
    """The slots of a pool: mapped until nothing refers to any of them."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self._number = ffi.new("azc_id *")
        check(lib.azc_pool_open(slot_bytes, slots, self._number))
        self.slot_bytes = slot_bytes
        self.nbytes = lib.azc_pool_bytes(self._number[0])
        self.slots = Slots(slots)

    def lease(self, on_end: Callable[[], object]) -> memoryview | None:
        """A view of a free slot, if there is one.  When it and all made of it are gone
        the slot is free again, and ``on_end`` is called.

        Raises:
            ValueError: a finalizer asks for it after that of this.
        """
        life = object()  # (also held here, until the view holds it)
        terms = _Terms(life, partial(self._end, on_end))
        key = self.slots.claim(terms)
        if key is None:
            return None
        address = lib.azc_pool_slot(self._number[0], self.slots.index(key))
        if address == ffi.NULL:
            _Lease(key)
            raise ValueError("the pool's memory was given back")
        return _view(key, terms, _address(address), self.slot_bytes)

    def _end(self, on_end: Callable[[], object]) -> None:
        on_end()  # (the memory was kept until here)

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None and not sys.is_finalizing():
            lib.azc_pool_close(number[0])


def finalizing_view(data: Buffer, finalizer: Callable[[], object]) -> memoryview:
    """A view of other memory; the callback runs when all views of it are gone.

    Raises: as `pin`.
    """
    pinned = pin(data)

    def release() -> None:
        ffi.release(pinned)
        finalizer()

    life = object()
    key, terms = next(_numbers) * _MOST_SLOTS, _Terms(life, release)
    _leases[key] = terms
    return _view(key, terms, _address(pinned), len(pinned))


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
