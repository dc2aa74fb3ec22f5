"""Blocking forms of the same calls, for programs without an event loop.

    with azc.sync.open_writer(sys.stdout) as stream:
        stream.send(array)  # when this returns, the array is yours again

Which thread runs a call
    a stream     its coroutines run in the calling thread.  Instead of waiting for a
                 loop, this thread waits for C itself (_waiting), so that no other
                 thread of Python has to run.  Threads may share a stream: each message
                 goes out whole, in the order of the calls, and receivers take turns
    the portal   an event loop in a daemon thread, which runs calls that need a loop:
                 films, rings, connecting.  The process has one, from the first such
                 call on (_portal)

What ends a call early
    Ctrl-C       the main thread's call is cancelled as the contract says: no trace, or
                 the whole message.  The buffers are the caller's before
                 KeyboardInterrupt leaves the call.  Other threads get no signals
    the end      of a stream, by ``close`` or ``abort`` in another thread: the call
                 raises StreamClosed
    a fork       streams that were open are the parent's: in the child, sends and
                 receives raise an error that says so, and ``close`` does nothing.  A
                 child that needs a portal gets its own

A call in a thread whose event loop runs is refused, because it would stop that loop;
the portal's own thread is such a thread.  ``abort`` may be called anywhere.

Each module says what it has.  A module imports those before it: _waiting, _portal,
_streams, ffmpeg, _rings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiozerocopy.sync._portal import run as run
from aiozerocopy.sync._streams import ReceiveStream as ReceiveStream
from aiozerocopy.sync._streams import SendStream as SendStream
from aiozerocopy.sync._streams import Stream as Stream
from aiozerocopy.sync._streams import Ticket as Ticket
from aiozerocopy.sync._streams import acquire as acquire
from aiozerocopy.sync._streams import connect_tcp as connect_tcp
from aiozerocopy.sync._streams import connect_unix as connect_unix
from aiozerocopy.sync._streams import open_reader as open_reader
from aiozerocopy.sync._streams import open_writer as open_writer
from aiozerocopy.sync._streams import pipe as pipe
from aiozerocopy.sync._streams import socketpair as socketpair
from aiozerocopy.sync._streams import wrap_socket as wrap_socket

if TYPE_CHECKING:
    from aiozerocopy.sync import ffmpeg as ffmpeg
    from aiozerocopy.sync._rings import Ring as Ring
    from aiozerocopy.sync._rings import connect_ring as connect_ring
    from aiozerocopy.sync._rings import listen_ring as listen_ring
else:

    def __getattr__(name: str) -> Any:
        """Import films and rings at their first use: not every machine can run them."""
        if name == "ffmpeg":
            return importlib.import_module("aiozerocopy.sync.ffmpeg")
        if name in ("Ring", "connect_ring", "listen_ring"):
            return getattr(importlib.import_module("aiozerocopy.sync._rings"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
