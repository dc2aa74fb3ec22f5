"""asyncio's transports, done by this package: for code that has a Protocol, or streams.

Each function has the arguments of the loop's own of that name, and gives real
`asyncio.Transport` objects, on asyncio's loops and on uvloop.  What is better: what is
written is neither copied nor mixed up with what comes into its buffer later, ``drain``
and `drained` mean that the buffers are yours again, every buffer counts its bytes, and
no error is swallowed.

A module imports those above it, never those below.

    readiness         when an fd has something to read
    lifetime          from connection_made to connection_lost
    writing           write, writelines, write_eof, flow control
    reading           what comes, for a Protocol or a BufferedProtocol
    socket_transport  the transport of a connection
    tls               what stands on it under TLS; tls_options and tls_parts
                      are what that is made of, besides _net.tls_session
    connections       create_connection, create_unix_connection,
                      connect_accepted_socket, start_tls
    server            create_server, create_unix_server
    asyncio_streams   open_connection, start_server and their like
    pipe_transports   connect_read_pipe, connect_write_pipe
    subprocesses      subprocess_exec, subprocess_shell, create_subprocess_exec
    files             sendfile
    loops             event loops that use all this: new_event_loop, install
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
from aiozerocopy.transport.pipe_transports import ReadPipeTransport as ReadPipeTransport
from aiozerocopy.transport.pipe_transports import (
    WritePipeTransport as WritePipeTransport,
)
from aiozerocopy.transport.pipe_transports import connect_read_pipe as connect_read_pipe
from aiozerocopy.transport.pipe_transports import (
    connect_write_pipe as connect_write_pipe,
)
from aiozerocopy.transport.server import Server as Server
from aiozerocopy.transport.server import create_server as create_server
from aiozerocopy.transport.server import create_unix_server as create_unix_server
from aiozerocopy.transport.socket_transport import SocketTransport as SocketTransport
from aiozerocopy.transport.subprocesses import (
    SubprocessTransport as SubprocessTransport,
)
from aiozerocopy.transport.subprocesses import (
    create_subprocess_exec as create_subprocess_exec,
)
from aiozerocopy.transport.subprocesses import subprocess_exec as subprocess_exec
from aiozerocopy.transport.subprocesses import subprocess_shell as subprocess_shell
from aiozerocopy.transport.tls import TLSTransport as TLSTransport
