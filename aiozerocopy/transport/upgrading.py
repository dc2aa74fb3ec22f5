"""`start_tls`: a connection goes on under TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozerocopy.transport.tls import TLSTransport
from aiozerocopy.transport.tls_options import TLSOptions

if TYPE_CHECKING:
    import ssl


async def start_tls(
    transport: asyncio.BaseTransport,
    protocol: asyncio.BaseProtocol,
    sslcontext: ssl.SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> TLSTransport:
    """Go on under TLS where a connection has begun without.

    The arguments are those of `asyncio.loop.start_tls`.  Returns the transport that the
    protocol has from now on; it must not use the old one any more.  That may be any
    `asyncio.Transport` which belongs to a loop for Unix.

    Raises:
        ssl.SSLError, ConnectionError: the handshake failed; the connection is lost.
        TypeError: ``sslcontext`` is no context.
        ValueError: a timeout is not positive.
    """
    options = TLSOptions(
        sslcontext,
        server_side,
        server_hostname,
        ssl_handshake_timeout,
        ssl_shutdown_timeout,
    )
    ready = asyncio.get_running_loop().create_future()
    wire: Any = transport
    upper = TLSTransport(protocol, options, ready, is_made=True)
    if wire.is_closing():
        raise ConnectionResetError("the connection was closed before the handshake")
    try:
        wire.set_protocol(upper)
        upper.connection_made(wire)
        wire.resume_reading()
        await ready
    except BaseException:
        upper.abort()
        raise
    return upper
