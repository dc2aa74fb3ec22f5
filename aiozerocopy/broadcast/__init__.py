"""Broadcast: one frame to any number of clients, without a copy for each.

How a frame travels
    `Broadcast.publish` takes it: a pool frame is leased, ``bytes`` are referred to, any
    other array is copied once.  Each encoding in use (a function of the frame) is made
    once: a `Message`, which all clients that use it share.  A client whose stream takes
    the message at once costs one system call and no task switch; another one queues it
    as its policy says, and goes on when its stream has room.

    An encoder that takes its time is an async function, and runs beside all that: one
    frame at a time, the newest that there is.  See `encodings`.

What a slow client holds
    Only the newest two frames are ever borrowed.  When a frame is published, the unsent
    rest of an older one is copied in C, and what else is queued of older ones is copied
    once for all.  So a stuck client holds no slot of a pool, and memory for one frame
    and what its own policy allows to queue.  An encoder that takes its time borrows the
    frame it is at, older as it may be.

Everything here runs in the event loop's thread.

hub            the `Broadcast`             published    a frame, and its messages
clients        one for each stream         encodings    what clients want of a frame
direct_client  without a task of its own   frame_queue  what waits for a slow client
"""

from aiozerocopy.broadcast.clients import Client as Client
from aiozerocopy.broadcast.clients import ClientStats as ClientStats
from aiozerocopy.broadcast.clients import ClientTooSlow as ClientTooSlow
from aiozerocopy.broadcast.clients import Event as Event
from aiozerocopy.broadcast.clients import Policy as Policy
from aiozerocopy.broadcast.hub import GRACE as GRACE
from aiozerocopy.broadcast.hub import SLOTS as SLOTS
from aiozerocopy.broadcast.hub import Broadcast as Broadcast
from aiozerocopy.broadcast.hub import wire as wire
from aiozerocopy.broadcast.published import Encode as Encode
from aiozerocopy.broadcast.published import Published as Published
