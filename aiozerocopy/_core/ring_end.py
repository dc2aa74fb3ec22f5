"""One side of a ring: the calls of C.

Who owns what
    the mapping   `RingEnd` and, through its `Claim`, each view of a record.  When the
                  last of them is gone it is unmapped, so views outlive the ring
    a batch       C holds it for the consumer from `take` until it is given back, which
                  is the end of its claim.  The claim exists before C is called: if an
                  exception of a signal handler comes in between, `untake` lets C take
                  the records again, and the claim has nothing to give back.  If one
                  comes in the finalizer that ends a claim, `forget_lost` ends it
    a room        the producer, from `reserve` until it commits or rolls back.  If the
                  room is dropped instead, it is rolled back once its last view is gone:
                  a finalizer may write to it until then
    the fds       C, until `close`.  A forked child's copies are closed in the child
"""

from __future__ import annotations

import collections
import contextlib
import errno
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import check, constants, ffi, lib
from aiozerocopy._core.errors import StreamClosed, broken_by, error_of
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.memory import Claim, is_over, sweep
from aiozerocopy._core.pins import Pins, pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozerocopy._core.binding import Counters
    from aiozerocopy._core.leases import AnyBuffer

ANY: int = constants.AZC_ANY
PRODUCER: int = constants.AZC_PRODUCER
CONSUMER: int = constants.AZC_CONSUMER

CLOSED = "the ring is closed"
HEADER = 16  # bytes of the capacity in front of each payload
STEP = 64  # bytes, of which each record takes one or more
_LARGEST = (1 << 32) - 1

# The results of functions that move records, if the caller should try again later.
FULL = EMPTY = -errno.EAGAIN
RESERVED = -errno.EBUSY

_FAULTS = {
    1: "an impossible index",
    2: "no record where one must begin",
    3: "a record that is longer than the bytes sent",
    4: "bytes on the socket, where none may come after the handshake",
}

_allocate = ffi.new_allocator(should_clear_after_alloc=False)


@dataclass(frozen=True)
class Taken:
    """Records that were taken: one view of them all, and where each lies in it.

    The records are held as long as this view, or a view of it, exists.
    """

    view: memoryview
    items: Any  # an azc_item for each
    count: int
    stride: int  # 0: they have several sizes


class _Mapping:
    """The ring's number, and its memory until nothing refers to it."""

    def __init__(self) -> None:
        # C stores the number itself: an exception after the call cannot lose it.
        self.number = ffi.new("azc_id *")
        # The room that is reserved: its claim, and what to call if it is lost.
        self.rooms: dict[int, Callable[[], object]] = {}

    # (default arguments are still there at interpreter exit, when globals are gone)
    def __del__(
        self,
        free: Any = lib.azc_shm_free,
        is_exiting: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        number = getattr(self, "number", None)
        if number is not None and number[0] and not is_exiting():
            free(number[0])


def _give_back(
    mapping: _Mapping, batch: Any, give_back: Any = lib.azc_shm_give_back
) -> None:
    give_back(mapping.number[0], batch)


class RingEnd(OfOneProcess):
    """One side of a ring."""

    def __init__(self, capacity: int = 0, role: int = ANY) -> None:
        """Make a new ring; with a capacity of 0 there is none until `hear_offer`.

        Raises:
            OSError: there is not enough memory, or no fd.
        """
        sweep()
        self._mapping = _Mapping()
        self._claims: collections.deque[tuple[int, Any]] = collections.deque()
        self._last: Any = None  # the azc_batch that was taken last
        OfOneProcess.__init__(self)
        self.id: int = 0
        self.role: int = role
        if capacity:
            check(lib.azc_shm_create(capacity, role, self._mapping.number))
            self._begin()

    def _begin(self) -> None:
        self.id = self._mapping.number[0]
        stats = self.stats()
        self.role = stats.role
        self.capacity: int = stats.capacity
        self.largest: int = min(self.capacity - HEADER, _LARGEST)

    # -- the handshake ----------------------------------------------------------------

    def hear_offer(self, socket: int) -> int:
        """Become the ring that is offered on the socket; return 0 or -errno."""
        result = lib.azc_shm_hear_offer(socket, self._mapping.number)
        if result == 0:
            self._begin()
        return result

    def offer(self, socket: int) -> int:
        return lib.azc_shm_offer(self.id, socket)

    def hear_answer(self, socket: int) -> int:
        return lib.azc_shm_hear_answer(self.id, socket)

    # -- waiting ----------------------------------------------------------------------

    def set_spin(self, us: int) -> None:
        check(lib.azc_shm_set_spin(self.id, us))

    def fds(self) -> tuple[int, int]:
        """Return the fds to wait for: the doorbell, and the socket."""
        stats = self.stats()
        return check(stats.bell), check(stats.socket)

    def hear(self) -> bool:
        """Empty the doorbell; return whether the peer's end of the socket is gone, or
        cannot be used."""
        return lib.azc_shm_hear(self.id) != 0

    # -- the producer -----------------------------------------------------------------

    def send(self, pins: Sequence[Any], type_id: int) -> int:
        """Copy pins into the ring as one record; returns 0, FULL, or an error."""
        if len(pins) == 1:
            (one,) = pins
            return lib.azc_shm_send(self.id, one, len(one), type_id)
        vec = ffi.new("struct iovec[]", [(one, len(one)) for one in pins])
        return lib.azc_shm_sendv(self.id, vec, len(pins), type_id)

    def send_now(self, buffers: Iterable[AnyBuffer], type_id: int) -> int:
        """Do as `send`, with buffers, which are borrowed meanwhile."""
        pins = Pins()
        try:
            try:
                pins = Pins(map(pin, buffers))
                return self.send(pins, type_id)
            finally:
                pins.release()
        except BaseException:  # (a signal handler may raise in the line above, too)
            pins.release()
            raise

    def reserve(self, nbytes: int, when_lost: Callable[[], object]) -> memoryview | int:
        """Return room for a record, to be written to; or FULL, RESERVED, or an error.

        `commit` or `rollback` must follow.  If all views of the room go before that, it
        is rolled back, and ``when_lost`` is called, maybe in a finalizer.
        """
        if not self.is_unreserved():
            return RESERVED
        key: list[int] = []
        claim = Claim(partial(_lose, self._mapping, key))
        try:
            key.append(claim.key)
            at = ffi.new("uint64_t *", claim.key)
            self._mapping.rooms[claim.key] = when_lost
            result = lib.azc_shm_reserve(self.id, nbytes, at)
            if result >= 0:
                return claim.view(at[0], nbytes)
            self._mapping.rooms.clear()
            return result
        except BaseException:
            self.rollback()
            raise

    def commit(self, nbytes: int, type_id: int) -> int:
        result = lib.azc_shm_commit(self.id, nbytes, type_id)
        if result == 0:
            self._mapping.rooms.clear()
        return result

    def rollback(self) -> None:
        for key in list(self._mapping.rooms):
            lib.azc_shm_rollback(self.id, key)
        self._mapping.rooms.clear()

    def is_unreserved(self) -> bool:
        """Return whether no room is reserved."""
        for key in list(self._mapping.rooms):
            if is_over(key):  # its finalizer was interrupted
                _lose(self._mapping, [key])
        return not self._mapping.rooms

    # -- the consumer -----------------------------------------------------------------

    def take(self, most: int) -> Taken | int:
        """Take up to ``most`` records; return 0 at the end, EMPTY, or an error.

        If it is interrupted, call `untake`.
        """
        most = min(most, self.capacity // STEP)  # (no more can be there)
        batch, items = ffi.new("azc_batch *"), _allocate("azc_item[]", most)
        self.forget_lost()
        claim = Claim(partial(_give_back, self._mapping, batch))
        self._claims.append((claim.key, batch))
        self._last = batch
        count = lib.azc_shm_take(self.id, most, batch, items)
        if count <= 0:
            return count
        view = claim.view(batch.at, batch.span)  # (kept by a traceback, for `untake`)
        return Taken(view.toreadonly(), items, count, batch.stride)

    def keep(self) -> None:
        """Keep the records that were taken last: `untake` has nothing to undo."""
        self._last = None

    def untake(self) -> None:
        """Let the next call take the last records again, unless they were kept."""
        if self._last is not None:
            lib.azc_shm_untake(self.id, self._last)
        self._last = None

    def forget_lost(self) -> bool:
        """Give back batches that nobody holds, but whose finalizer was interrupted.

        Returns whether any batch is held.  Checks only the oldest ones, since the
        producer waits for the oldest.
        """
        while self._claims and is_over(self._claims[0][0]):
            _give_back(self._mapping, self._claims[0][1])
            with contextlib.suppress(IndexError):
                self._claims.popleft()
        return bool(self._claims)

    # -- the end ----------------------------------------------------------------------

    def leave(self, clean: bool) -> None:
        """End the ring for the peer: as closed, if ``clean``, or as if we had died."""
        lib.azc_shm_leave(self.id, clean)

    def close(self) -> None:
        """Close the fds; no task may wait for them any more."""
        lib.azc_shm_close(self.id)

    def free(self) -> None:
        """Close the fds and unmap the memory; nothing may be taken or reserved."""
        lib.azc_shm_free(self.id)

    def stats(self) -> Counters:
        """Return the counters as of now; all are zero in a forked child."""
        stats: Counters = ffi.new("azc_shm_stats *")
        lib.azc_shm_get_stats(self.id, stats)
        return stats

    def error(self, status: int, nbytes: int = 0) -> Exception:
        """Return the exception for a ``-errno`` of a call that moves records."""
        if status == -errno.EMSGSIZE:
            return ValueError(too_large(nbytes, self.capacity, self.largest))
        if status == -errno.EINVAL:
            doing = "sends" if self.role == PRODUCER else "receives"
            return TypeError(f"this end of the ring only {doing}")
        if status == -errno.ESHUTDOWN:
            return StreamClosed(CLOSED)
        if status not in (-errno.EPIPE, -errno.EPROTO):
            return error_of(status)
        return broken_by(-status, self._why(status), 0, nbytes)

    def _why(self, status: int) -> str:
        stats = self.stats()
        peer = "consumer" if self.role == PRODUCER else "producer"
        if status == -errno.EPROTO:
            return f"the {peer} broke the ring's rules: {_FAULTS[stats.fault]}"
        if stats.left:
            return f"the {peer} has closed the ring"
        return f"the {peer} died, or dropped the ring without closing it"


def _lose(
    mapping: _Mapping, keys: Sequence[int], rollback: Any = lib.azc_shm_rollback
) -> None:
    """Roll back rooms whose last view has gone."""
    for key in keys:
        if key in mapping.rooms:  # neither committed nor rolled back
            rollback(mapping.number[0], key)
            if (when_lost := mapping.rooms.pop(key, None)) is not None:
                when_lost()


def too_large(nbytes: int, capacity: int, largest: int) -> str:
    return (
        f"a record of {nbytes:,} bytes does not fit this ring of {capacity:,} bytes: "
        f"at most {largest:,} do"
    )


# ---- before there is a ring ---------------------------------------------------------

check_user = lib.azc_shm_check_user  # -EACCES: the other process is another user's
ask = lib.azc_shm_ask
hear_ask = lib.azc_shm_hear_ask  # the role that is asked for, or -errno
refuse = lib.azc_shm_refuse
