"""Rings, blocking: each call is the portal's, which watches the ring's doorbell."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import anyio

from aiozerocopy import shm
from aiozerocopy.sync._opening import opens_later
from aiozerocopy.sync._streams import Face, blocking, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ring(Face):
    """`aiozerocopy.shm.Ring`, for threads."""

    send: Final = blocking(shm.Ring.send)
    receive: Final = blocking(shm.Ring.receive, in_turn=True)
    receive_batch: Final = blocking(shm.Ring.receive_batch, in_turn=True)
    capacity: Final = shown(shm.Ring, lambda ring: ring.capacity)
    stats: Final = shown(shm.Ring, lambda ring: ring.stats)
    abort: Final = shown(shm.Ring, lambda ring: ring.abort)

    def __iter__(self) -> Iterator[shm.Record]:
        """The records, until the end.  Release each: ``with record: ...``."""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                yield self.receive()


connect_ring: Final = opens_later(Ring, shm.connect_ring)
listen_ring: Final = opens_later(Ring, shm.listen_ring)
