"""Memory to pipes, sockets and FFmpeg, without a copy in user space.

When ``await stream.send(buffer)`` returns, the bytes are out, in order, and the buffer
is yours.
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
from aiozerocopy.client import FrameClient as FrameClient
from aiozerocopy.client import connect_frames as connect_frames
from aiozerocopy.framing import FrameError as FrameError
from aiozerocopy.framing import FrameReceiver as FrameReceiver
from aiozerocopy.framing import FrameSender as FrameSender
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
from aiozerocopy.publishing import Publication as Publication
from aiozerocopy.publishing import publish_stats as publish_stats
from aiozerocopy.relays import Relay as Relay
from aiozerocopy.relays import relay as relay
from aiozerocopy.splitter import Splitter as Splitter
from aiozerocopy.splitter import SplitterReader as SplitterReader
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
    from aiozerocopy import testing as testing
    from aiozerocopy import transport as transport
    from aiozerocopy import web as web
    from aiozerocopy.transport import install as install
    from aiozerocopy.transport import new_event_loop as new_event_loop
    from aiozerocopy.trio_streams import as_trio as as_trio
else:
    _ROOMS = (
        *("capture", "ffmpeg", "frames", "gl", "shm", "testing", "transport", "web"),
    )
    _MEMBERS = {
        "as_trio": "trio_streams",
        "install": "transport",
        "new_event_loop": "transport",
    }

    def __getattr__(name: str) -> Any:
        """Packages that not everybody needs are imported when they are first used."""
        if name in _ROOMS:
            return importlib.import_module(f"aiozerocopy.{name}")
        if name in _MEMBERS:
            module = importlib.import_module(f"aiozerocopy.{_MEMBERS[name]}")
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
