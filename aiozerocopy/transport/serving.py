"""create_server and create_unix_server, as the loop has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._net.listening import Listener, listen_tcp, listen_unix
from aiozerocopy.transport.connecting import check_stream, check_unix
from aiozerocopy.transport.server import Server
from aiozerocopy.transport.tls import TLSTransport
from aiozerocopy.transport.tls_options import for_server

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Iterator, Sequence

    from aiozerocopy.transport.server import Factory
    from aiozerocopy.transport.tls_options import TLSOptions


async def create_server(
    protocol_factory: Factory,
    host: str | Sequence[str] | None = None,
    port: int | None = None,
    *,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    sock: socket.socket | None = None,
    backlog: int = 100,
    ssl: tls.SSLContext | None = None,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    keep_alive: bool | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    start_serving: bool = True,
) -> Server:
    """Listen on TCP; a protocol is made for every client that comes.

    The arguments are those of `asyncio.loop.create_server`.  Port 0 is a free one, the
    same for all addresses.

    Raises:
        OSError: it cannot listen there; host and port are in the text.
        ValueError: arguments that contradict each other.
    """
    factory = _under_tls(
        protocol_factory, for_server(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
    )
    if sock is not None:
        if host is not None or port is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        check_stream(sock)
        listeners = [_taken(sock, backlog)]
    else:
        if host is None and port is None:
            raise ValueError("Neither host/port nor sock were specified")
        hosts = [host] if host is None or isinstance(host, str) else list(host)
        listen = partial(
            listen_tcp,
            backlog=backlog,
            reuse_port=bool(reuse_port),
            reuse_address=reuse_address is not False,
            family=family,
            flags=flags,
        )
        listeners = await _listen_on(hosts, port or 0, listen)
    with _closed_if_it_fails(listeners):
        for listener in listeners if keep_alive else ():
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return await _served(listeners, factory, backlog, start_serving)


async def create_unix_server(
    protocol_factory: Factory,
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    sock: socket.socket | None = None,
    backlog: int = 100,
    ssl: tls.SSLContext | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    start_serving: bool = True,
    cleanup_socket: bool = sys.version_info >= (3, 13),
) -> Server:
    """Listen on a Unix socket; a protocol is made for every client that comes.

    The arguments are those of `asyncio.loop.create_unix_server`.  A file that a dead
    server left is replaced.  With ``cleanup_socket``, as is usual from Python 3.13 on,
    it is removed at the end, if it is still ours.

    Raises:
        OSError: it cannot listen there, or somebody else does; the path is in the text.
        ValueError: arguments that contradict each other.
    """
    factory = _under_tls(
        protocol_factory, for_server(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
    )
    if path is not None and sock is not None:
        raise ValueError("path and sock can not be specified at the same time")
    if sock is not None:
        check_unix(sock)
        listener = _taken(sock, backlog)
        if listener.address and listener.address[0] != "\0":
            listener.own_file()
    elif path is not None:
        listener = listen_unix(os.fspath(path), None, backlog)
    else:
        raise ValueError("path was not specified, and no sock specified")
    if not cleanup_socket:
        listener.file = None
    with _closed_if_it_fails([listener]):
        return await _served([listener], factory, backlog, start_serving)


def _under_tls(factory: Factory, options: TLSOptions | None) -> Factory:
    """What makes a client's protocol, which TLS may stand below."""
    return (lambda: TLSTransport(factory(), options)) if options else factory


def _taken(sock: socket.socket, backlog: int) -> Listener:
    sock.setblocking(False)
    sock.listen(backlog)
    return Listener(sock, sock.getsockname())


async def _listen_on(
    hosts: Sequence[str | None], port: int, listen: Any
) -> list[Listener]:
    listeners: list[Listener] = []
    with _closed_if_it_fails(listeners):
        for host in hosts:
            listeners += await listen(host, port)
            port = port or listeners[0].address[1]
    return listeners


@contextlib.contextmanager
def _closed_if_it_fails(listeners: list[Listener]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for listener in listeners:
            listener.close()
        raise


async def _served(
    listeners: list[Listener], factory: Factory, backlog: int, start: bool
) -> Server:
    server = Server(asyncio.get_running_loop(), listeners, factory, backlog)
    try:
        if start:
            await server.start_serving()
        return server
    except BaseException:
        server.close()
        raise
