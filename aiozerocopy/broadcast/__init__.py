"""Broadcast: one frame to any number of clients, without a copy for each.

How a frame travels
    `Broadcast.publish` takes it: a pool frame is leased, ``bytes`` are referred to, any
    other array is copied once.  Each encoding in use (a function of the frame) is made
    once: a `Message`, which all clients that use it share.  A client whose stream takes
    the message at once costs one system call and no task switch; other clients queue it
    as their policies say, and continue when their streams have room.

    A slow encoder is an async function that runs in the background, on one frame at a
    time: always the newest.  See `encodings`.

What a slow client holds
    Only the newest two frames are borrowed.  Publishing a frame copies each older frame
    that a client still needs, once for all clients.  So two frames later a stuck client
    holds no slot of a pool, only memory for the frame in flight and for those that its
    policy allows to queue.  A slow encoder borrows its frame, however old that is.

Everything here runs in the event loop's thread.

hub            the `Broadcast`             published    a frame, and its messages
clients        one for each stream         encodings    what clients want of a frame
direct_client  a client without a task     frame_queue  what waits for a slow client
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
