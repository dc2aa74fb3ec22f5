"""asyncio's transports, made by this package, for code with Protocols or streams.

The functions that connect or serve have the arguments of asyncio's own of that name,
and make real `asyncio.Transport` objects, on asyncio's loops and on uvloop.  They
improve on asyncio: large data is not copied, except by TLS; ``drain`` and `drained`
mean that you may use the buffers again without changing what is sent; every buffer is
counted in bytes; no error is swallowed.

Each module says what it contains.  A module imports those before it, never those after:
readiness, reading, socket_transport, tls, connections, server, asyncio_streams, files,
loops.
"""

from __future__ import annotations

from aiozerocopy.transport.asyncio_streams import open_connection as open_connection
from aiozerocopy.transport.asyncio_streams import (
    open_unix_connection as open_unix_connection,
)
from aiozerocopy.transport.asyncio_streams import start_server as start_server
from aiozerocopy.transport.asyncio_streams import start_unix_server as start_unix_server
from aiozerocopy.transport.connections import (
    connect_accepted_socket as connect_accepted_socket,
)
from aiozerocopy.transport.connections import create_connection as create_connection
from aiozerocopy.transport.connections import (
    create_unix_connection as create_unix_connection,
)
from aiozerocopy.transport.connections import start_tls as start_tls
from aiozerocopy.transport.files import sendfile as sendfile
from aiozerocopy.transport.loops import EventLoop as EventLoop
from aiozerocopy.transport.loops import install as install
from aiozerocopy.transport.loops import new_event_loop as new_event_loop
from aiozerocopy.transport.server import Server as Server
from aiozerocopy.transport.server import create_server as create_server
from aiozerocopy.transport.server import create_unix_server as create_unix_server
from aiozerocopy.transport.socket_transport import SocketTransport as SocketTransport
from aiozerocopy.transport.tls import TLSTransport as TLSTransport
