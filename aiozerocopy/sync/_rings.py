"""Blocking rings.

The calling thread sends and takes: C has a lock for each ring.  Only a call that has to
wait, or a send that fails, goes to the portal, whose loop watches the ring's doorbell;
the portal asks C once more, so it misses nothing in between.  A record that the portal
receives is put back, and the calling thread takes it.  (Without the GIL, an object that
the portal's thread made ends only while that thread runs: a record would be held after
its release.)
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from aiozerocopy import shm
from aiozerocopy._core.borrows import or_undo_now
from aiozerocopy._core.ring_end import RingEnd, Taken
from aiozerocopy.shm.record import only_record
from aiozerocopy.shm.ring import BATCH, check_most
from aiozerocopy.sync._streams import Face, opens_later, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.shm.receiver import Receiver

T = TypeVar("T")


class Ring(Face):
    """`aiozerocopy.shm.Ring`, for threads."""

    _last: object = None  # the call that received last
    capacity: Final = shown(shm.Ring, lambda ring: ring.capacity)
    stats: Final = shown(shm.Ring, lambda ring: ring.stats)
    abort: Final = shown(shm.Ring, lambda ring: ring.abort)

    def send(self, *buffers: AnyBuffer, type_id: int = 0) -> None:
        """Send one record, as `aiozerocopy.shm.Ring.send`."""
        self._check()
        with self._turn:
            if not self._send_now(buffers, type_id):
                send = functools.partial(self._it.send, type_id=type_id)
                self._run(send, *buffers)

    def _send_now(self, buffers: Sequence[AnyBuffer], type_id: int) -> bool:
        side = self._it._sender()
        if side.closed or not 0 <= type_id < 1 << 32:
            return False
        return bool(side.end.send_now(buffers, type_id) == 0)

    def receive(self) -> shm.Record:
        """Receive the next record, as `aiozerocopy.shm.Ring.receive`."""
        return self._receive(1, only_record)

    def receive_batch(self, most: int = BATCH) -> shm.Batch:
        """Receive records, as `aiozerocopy.shm.Ring.receive_batch`."""
        check_most(most)
        return self._receive(most, shm.Batch)

    def _receive(self, most: int, result: Callable[[Taken], T]) -> T:
        """Take records.  If interrupted, even at the end, the next call takes them."""
        self._check()
        end: RingEnd = self._it._receiver().end
        mine: list[T] = []  # (keeps the records: `untake` cannot undo a release)

        def take() -> None:
            taken = self._take(most)  # (kept by a traceback, for `untake`)
            mine.append(result(taken))

        def run() -> T:
            with self._turn:
                end.keep()
                self._last = mine
                or_undo_now(take, undo)  # (before another thread has its turn)
            return mine[0]

        def undo() -> None:
            if self._last is not mine:  # another call has taken records, or its turn
                return
            with self._turn:
                if self._last is mine:
                    end.untake()

        return or_undo_now(run, undo)

    def _take(self, most: int) -> Taken:
        side: Receiver = self._it._receiver()
        while side.closed or not isinstance(taken := side.end.take(most), Taken):
            self._run(side.receive, 1, lambda _: side.end.untake())
        return taken

    def __iter__(self) -> Iterator[shm.Record]:
        """Yield the records, until the end; release each: ``with record: ...``."""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                yield self.receive()


connect_ring: Final = opens_later(Ring, shm.connect_ring)
listen_ring: Final = opens_later(Ring, shm.listen_ring)
