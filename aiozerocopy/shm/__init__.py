"""Rings: records to another process through shared memory, without a system call.

Each module says what it has.  A module imports those before it, never those after:
side, sender, receiver, slot, record, routes, ring, handshake, rpc, fanout.
"""

from __future__ import annotations

from aiozerocopy._core.binding import PORTABLE

if PORTABLE:
    raise ImportError(
        "aiozerocopy.shm needs Linux: rings are made of memfd and eventfd, and this is "
        "the portable build"
    )

from aiozerocopy.shm.fanout import Consumer as Consumer
from aiozerocopy.shm.fanout import FanOut as FanOut
from aiozerocopy.shm.handshake import connect_ring as connect_ring
from aiozerocopy.shm.handshake import listen_ring as listen_ring
from aiozerocopy.shm.record import Batch as Batch
from aiozerocopy.shm.record import Record as Record
from aiozerocopy.shm.ring import Ring as Ring
from aiozerocopy.shm.ring import RingStats as RingStats
from aiozerocopy.shm.routes import Route as Route
from aiozerocopy.shm.rpc import RemoteError as RemoteError
from aiozerocopy.shm.rpc import Request as Request
from aiozerocopy.shm.rpc import Rpc as Rpc
from aiozerocopy.shm.slot import Slot as Slot
