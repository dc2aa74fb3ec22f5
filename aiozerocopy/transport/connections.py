"""create_connection, create_unix_connection, connect_accepted_socket and start_tls, as
the loop has them."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from aiozerocopy._net.connecting import (
    bracketed,
    connect_first,
    connected_unix,
    located,
    look_up,
)
from aiozerocopy.transport.socket_transport import SocketTransport, transport_over
from aiozerocopy.transport.tls import TLSOptions, TLSTransport, for_client, for_server

if TYPE_CHECKING:
    import os
    import ssl as tls
    from collections.abc import Callable

    from aiozerocopy.transport.lifetime import Lifetime

    Connected = SocketTransport | TLSTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def create_connection(
    protocol_factory: Callable[[], P],
    host: str | None = None,
    port: int | str | None = None,
    *,
    ssl: bool | tls.SSLContext | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    sock: socket.socket | None = None,
    local_addr: tuple[str, int] | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    happy_eyeballs_delay: float | None = None,
    interleave: int | None = None,
    all_errors: bool = False,
) -> tuple[Connected, P]:
    """Connect to a TCP server, or take a connected ``sock`` over.

    The arguments are those of `asyncio.loop.create_connection`.

    Raises:
        OSError: nobody answered; host and port are in the text, and the addresses if
            many were tried.  With ``all_errors``, an ExceptionGroup of them.
        ssl.SSLError, ConnectionError: the TLS handshake failed.
        ValueError: arguments that contradict each other.
    """
    timeouts = (ssl_handshake_timeout, ssl_shutdown_timeout)
    options = for_client(ssl, host, server_hostname, *timeouts)
    if sock is not None:
        if host is not None or port is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        check_stream(sock)
        return await begun(protocol_factory, sock, options, is_given=True)
    if host is None and port is None:
        raise ValueError("host and port was not specified and no sock specified")
    if interleave is None:
        interleave = 0 if happy_eyeballs_delay is None else 1
    place = f"cannot connect to {bracketed(host)}:{port}"
    if local_addr is not None:
        place += f" from {local_addr}"
    try:
        candidates = await look_up(
            host, port, interleave, family=family, proto=proto, flags=flags
        )
        sock = await connect_first(candidates, local_addr, happy_eyeballs_delay)
    except OSError as error:
        cause = error.__cause__
        if all_errors and cause is not None and sys.version_info >= (3, 11):
            errors = getattr(cause, "exceptions", [cause])
            raise ExceptionGroup(place, errors) from None  # noqa: F821
        raise located(error, place) from cause or error
    return await begun(protocol_factory, sock, options)


async def create_unix_connection(
    protocol_factory: Callable[[], P],
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    ssl: bool | tls.SSLContext | None = None,
    sock: socket.socket | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> tuple[Connected, P]:
    """Connect to a Unix server, or take a connected ``sock`` over.

    The arguments are those of `asyncio.loop.create_unix_connection`.

    Raises: as `create_connection`; the path is in the text.
    """
    timeouts = (ssl_handshake_timeout, ssl_shutdown_timeout)
    options = for_client(ssl, None, server_hostname, *timeouts)
    if path is not None:
        if sock is not None:
            raise ValueError("path and sock can not be specified at the same time")
        return await begun(protocol_factory, await connected_unix(path), options)
    if sock is None:
        raise ValueError("no path and sock were specified")
    check_unix(sock)
    return await begun(protocol_factory, sock, options, is_given=True)


async def connect_accepted_socket(
    protocol_factory: Callable[[], P],
    sock: socket.socket,
    *,
    ssl: tls.SSLContext | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> tuple[Connected, P]:
    """Serve a client that was accepted elsewhere.

    The arguments are those of `asyncio.loop.connect_accepted_socket`.

    Raises: as `create_connection`.
    """
    options = for_server(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
    check_stream(sock)
    return await begun(protocol_factory, sock, options, is_given=True)


async def start_tls(
    transport: asyncio.BaseTransport,
    protocol: asyncio.BaseProtocol,
    sslcontext: tls.SSLContext,
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
        TypeError: ``sslcontext`` is no context, or ``transport`` no transport.
        ValueError: a timeout is not positive.
    """
    timeouts = (ssl_handshake_timeout, ssl_shutdown_timeout)
    options = TLSOptions(sslcontext, server_side, server_hostname, *timeouts)
    if not hasattr(transport, "set_protocol"):
        raise TypeError(f"transport {transport!r} is not supported by start_tls()")
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


def check_stream(sock: socket.socket) -> None:
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")


def check_unix(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A UNIX Domain Stream Socket was expected, got {sock!r}")


async def begun(
    protocol_factory: Callable[[], P],
    sock: socket.socket,
    options: TLSOptions | None,
    *,
    is_given: bool = False,
) -> tuple[Connected, P]:
    """A transport over a connected socket, once connection_made was called."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        protocol = protocol_factory()
        upper = TLSTransport(protocol, options, ready) if options else None
        transport = transport_over(sock, upper or protocol, is_given=is_given)
    except BaseException:
        if not is_given:
            sock.close()
        raise
    try:
        await made(transport)
        if upper is not None:
            await ready
    except BaseException:
        transport.abort()
        raise
    finally:
        ready.cancel()
    return upper or transport, protocol


async def made(transport: Lifetime) -> None:
    """Return once connection_made was called; raises what that does."""
    try:
        await asyncio.sleep(0)  # let others run, as the loop's own does
        transport.begin()
    except BaseException:
        transport.abort()
        raise
