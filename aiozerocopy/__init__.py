"""Big buffers to pipes, sockets, FFmpeg and browsers, without a copy in user space.

When ``await stream.send(buffer)`` returns, the bytes are out, in order, and the buffer
is yours.  This works alike on asyncio, uvloop and trio:

    import aiozerocopy as azc, anyio, numpy as np

    async def main():
        async with azc.ffmpeg.Writer("film.mp4", (640, 360), fps=30) as film:
            for number in range(90):
                await film.send(np.full((360, 640, 3), number, "uint8"))

    anyio.run(main)

streams     open_writer, open_reader, pipe, socketpair, wrap_socket, open_process
sockets     connect_tcp, connect_unix, serve_tcp, serve_unix
memory      FramePool: slots that come back once they are sent; finalizing_buffer
relays      relay: bytes that the kernel moves between streams
frames      FrameSender, FrameReceiver: arrays over a stream; Broadcast, connect_frames
errors      StreamBroken, StreamClosed, IncompleteReceive, ClientTooSlow,
            FrameError, FrameTooLarge, FrameTooSlow, TokenRefused
packages    capture, ffmpeg, frames, gl, shm, sync, testing, transport, web
others      as_trio: streams for trio; install: asyncio's own streams

`aiozerocopy doctor`, in a shell, says what this machine lacks, and how to get it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.errors import IncompleteReceive as IncompleteReceive
from aiozerocopy._core.errors import StreamBroken as StreamBroken
from aiozerocopy._core.errors import StreamClosed as StreamClosed
from aiozerocopy._core.lifetime import Stats as Stats
from aiozerocopy._net.connecting import connect_tcp as connect_tcp
from aiozerocopy._net.connecting import connect_unix as connect_unix
from aiozerocopy._net.serving import serve_tcp as serve_tcp
from aiozerocopy._net.serving import serve_unix as serve_unix
from aiozerocopy.broadcast import Broadcast as Broadcast
from aiozerocopy.broadcast import ClientTooSlow as ClientTooSlow
from aiozerocopy.client import FrameClient as FrameClient
from aiozerocopy.client import TokenRefused as TokenRefused
from aiozerocopy.client import connect_frames as connect_frames
from aiozerocopy.framing import FrameError as FrameError
from aiozerocopy.framing import FrameReceiver as FrameReceiver
from aiozerocopy.framing import FrameSender as FrameSender
from aiozerocopy.framing import FrameTooLarge as FrameTooLarge
from aiozerocopy.framing import FrameTooSlow as FrameTooSlow
from aiozerocopy.opening import open_reader as open_reader
from aiozerocopy.opening import open_writer as open_writer
from aiozerocopy.opening import pipe as pipe
from aiozerocopy.opening import pipe_capacity as pipe_capacity
from aiozerocopy.opening import socketpair as socketpair
from aiozerocopy.opening import wrap_socket as wrap_socket
from aiozerocopy.pool import Frame as Frame
from aiozerocopy.pool import FramePool as FramePool
from aiozerocopy.pool import PoolStats as PoolStats
from aiozerocopy.pool import finalizing_buffer as finalizing_buffer
from aiozerocopy.process import Process as Process
from aiozerocopy.process import open_process as open_process
from aiozerocopy.relays import Relay as Relay
from aiozerocopy.relays import relay as relay
from aiozerocopy.streams import ReceiveStream as ReceiveStream
from aiozerocopy.streams import SendStream as SendStream
from aiozerocopy.streams import Stream as Stream
from aiozerocopy.streams import Ticket as Ticket
from aiozerocopy.streams import UnixStream as UnixStream

if TYPE_CHECKING:
    from aiozerocopy import capture as capture
    from aiozerocopy import ffmpeg as ffmpeg
    from aiozerocopy import frames as frames
    from aiozerocopy import gl as gl
    from aiozerocopy import shm as shm
    from aiozerocopy import sync as sync
    from aiozerocopy import testing as testing
    from aiozerocopy import transport as transport
    from aiozerocopy import web as web
    from aiozerocopy.transport import install as install
    from aiozerocopy.transport import new_event_loop as new_event_loop
    from aiozerocopy.trio_streams import as_trio as as_trio
else:
    _ROOMS = (
        *("capture", "ffmpeg", "frames", "gl", "shm", "sync", "testing", "transport"),
        "web",
    )
    _MEMBERS = {
        "as_trio": "trio_streams",
        "install": "transport",
        "new_event_loop": "transport",
    }
    _EXTRAS = {"as_trio": "trio", "gl": "gl", "web": "web"}

    def __dir__() -> list[str]:
        """Return the public names, without those whose extra is missing.

        (`help` and ``import *`` look up every name that this returns.)
        """
        from aiozerocopy._core import extras
        from aiozerocopy._core.binding import PORTABLE

        mine = (
            name
            for name, thing in globals().items()
            if getattr(thing, "__module__", "").startswith(f"{__name__}.")
        )
        return sorted(
            name
            for name in {*mine, *_ROOMS, *_MEMBERS}
            if name not in _EXTRAS or not extras.lacking(_EXTRAS[name])
            if name != "shm" or not PORTABLE
        )

    def __getattr__(name: str) -> Any:
        """Import a package on first use, as not every program needs it."""
        if name == "__all__":
            return __dir__()
        if name in _ROOMS:
            return importlib.import_module(f"aiozerocopy.{name}")
        if name in _MEMBERS:
            module = importlib.import_module(f"aiozerocopy.{_MEMBERS[name]}")
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
