"""Rings: records to another process through shared memory, without a system call.

bell        wakes the tasks that wait for the other side
line        who sends next
slot        `Slot`: a record that is filled in place
records     what was received: `Record`, `Batch`
side        what sending and receiving share
sender      the side that sends
receiver    the side that receives
ring        `Ring`
handshake   how two processes come to share a ring
opening     `listen_ring`, `connect_ring`
nowait      sending at once or not at all
calls, rpc  `Rpc`: calls over two rings
fanout      `FanOut`: one producer, many rings
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
from aiozerocopy.shm.opening import connect_ring as connect_ring
from aiozerocopy.shm.opening import listen_ring as listen_ring
from aiozerocopy.shm.records import Batch as Batch
from aiozerocopy.shm.records import Record as Record
from aiozerocopy.shm.ring import Ring as Ring
from aiozerocopy.shm.ring import RingStats as RingStats
from aiozerocopy.shm.routes import Route as Route
from aiozerocopy.shm.rpc import RemoteError as RemoteError
from aiozerocopy.shm.rpc import Request as Request
from aiozerocopy.shm.rpc import Rpc as Rpc
from aiozerocopy.shm.slot import Slot as Slot
