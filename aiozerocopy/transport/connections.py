"""create_connection, create_unix_connection, connect_accepted_socket and start_tls, as
asyncio's loops have them."""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aiozerocopy._net.connecting import (
    bracketed,
    connect_first,
    connected_unix,
    located,
    look_up,
)
from aiozerocopy.transport.socket_transport import SocketTransport, transport_over
from aiozerocopy.transport.tls import TLSProtocol, TLSTransport, for_client, for_server

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from aiozerocopy.transport.tls import Secure

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
    local_addr: tuple[str | None, int | str | None] | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    happy_eyeballs_delay: float | None = None,
    interleave: int | None = None,
    all_errors: bool = False,
) -> tuple[Connected, P]:
    """Connect to a TCP server, or take over a connected ``sock``.

    The arguments are those of `asyncio.loop.create_connection`.

    Raises:
        OSError: no server answered; host and port are in the text, and the addresses if
            many were tried.  With ``all_errors``, an ExceptionGroup of all errors.
        ssl.SSLError, ConnectionError: the TLS handshake failed.
        ValueError: the arguments contradict each other, or no port has this number.
    """
    timeouts = (ssl_handshake_timeout, ssl_shutdown_timeout)
    secure = for_client(ssl, host, server_hostname, timeouts)
    if sock is not None:
        if host is not None or port is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        check_stream(sock)
        return await begun(protocol_factory, sock, secure, is_given=True)
    if host is None and port is None:
        raise ValueError("host and port was not specified and no sock specified")
    if interleave is None:
        interleave = 0 if happy_eyeballs_delay is None else 1
    place = f"cannot connect to {bracketed(host)}:{port}"
    if local_addr is not None:
        place += f" from {local_addr}"
    try:
        look = partial(look_up, family=family, proto=proto)
        candidates = await look(host, port, interleave, flags=flags)
        local = None
        if local_addr is not None:
            found = await look(*local_addr[:2], 0, flags=flags | socket.AI_PASSIVE)
            scope = local_addr[2:]  # (of an IPv6 socket's own address)
            local = [(kind, (*at[:2], *(scope or at[2:]))) for kind, at in found]
        sock = await connect_first(candidates, local, happy_eyeballs_delay)
    except OSError as error:
        cause = error.__cause__
        if all_errors and cause is not None and sys.version_info >= (3, 11):
            errors = getattr(cause, "exceptions", [cause])
            raise ExceptionGroup(place, errors) from None  # noqa: F821
        raise located(error, place) from cause or error
    return await begun(protocol_factory, sock, secure)


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
    """Connect to a Unix server, or take over a connected ``sock``.

    The arguments are those of `asyncio.loop.create_unix_connection`.

    Raises: as `create_connection`; the path is in the text.
    """
    timeouts = (ssl_handshake_timeout, ssl_shutdown_timeout)
    secure = for_client(ssl, None, server_hostname, timeouts)
    if path is not None:
        if sock is not None:
            raise ValueError("path and sock can not be specified at the same time")
        return await begun(protocol_factory, await connected_unix(path), secure)
    if sock is None:
        raise ValueError("no path and sock were specified")
    check_unix(sock)
    return await begun(protocol_factory, sock, secure, is_given=True)


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
    secure = for_server(ssl, (ssl_handshake_timeout, ssl_shutdown_timeout))
    check_stream(sock)
    return await begun(protocol_factory, sock, secure, is_given=True)


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
    """Put TLS over a connection that has begun without it.

    The arguments are those of `asyncio.loop.start_tls`.  Returns the protocol's new
    transport; the protocol must not use the old one any more.

    Raises:
        ssl.SSLError, ConnectionError: the handshake failed; the connection is lost.
        TypeError: ``sslcontext`` is not a context, or TLS cannot be put over this
            ``transport``.
        ValueError: a timeout is not positive.
    """
    if not isinstance(sslcontext, tls.SSLContext):
        raise TypeError(
            "sslcontext is expected to be an instance of ssl.SSLContext, got "
            f"{sslcontext!r}"
        )
    wire: Any = transport
    if not getattr(wire, "_start_tls_compatible", False):
        raise TypeError(f"transport {transport!r} is not supported by start_tls()")
    if wire.is_closing():
        raise ConnectionResetError("the connection was closed before the handshake")
    ready = asyncio.get_running_loop().create_future()
    lower = TLSProtocol(
        *(sslcontext, (ssl_handshake_timeout, ssl_shutdown_timeout), protocol, ready),
        server_side=server_side,
        server_hostname=server_hostname,
        call_connection_made=False,
    )
    upper: TLSTransport = lower.upper
    try:
        wire.set_protocol(lower)
        lower.connection_made(wire)
        wire.resume_reading()
        await ready
    except BaseException:
        upper.abort()
        raise
    finally:
        del ready  # (it refers to the exception, which refers to this frame)
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
    secure: Secure | None,
    *,
    is_given: bool = False,
) -> tuple[Connected, P]:
    """Return a transport over a connected socket, after calling connection_made."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        protocol = protocol_factory()
        transport = transport_over(sock, protocol, is_given=is_given)
    except BaseException:
        if not is_given:
            sock.close()
        raise
    top: Connected = transport
    try:
        if secure is not None:
            lower = secure(protocol, ready)
            top = lower.upper
            transport.set_protocol(lower)
        await asyncio.sleep(0)  # let others run, as the loop's own method does
        transport.begin()
        if secure is not None:
            await ready
    except BaseException:
        transport.abort()
        top.abort()  # (otherwise TLS would warn if it has not begun)
        raise
    finally:
        ready.cancel()
        del ready  # (it refers to the exception, which refers to this frame)
    return top, protocol
