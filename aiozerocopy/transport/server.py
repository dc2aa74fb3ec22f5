"""create_server and create_unix_server, like the loop's methods, and their `Server`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.trsock import TransportSocket
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._net.listening import EXHAUSTED, Listener, listen_tcp, listen_unix
from aiozerocopy.transport.connections import check_stream, check_unix
from aiozerocopy.transport.readiness import readiness_in
from aiozerocopy.transport.socket_transport import SocketTransport, transport_over
from aiozerocopy.transport.tls import TLSProtocol, for_server

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiozerocopy.transport.tls import Secure

    Factory = Callable[[], asyncio.BaseProtocol]

PAUSE = 1.0  # seconds without accepting, when fds or memory are exhausted


async def create_server(
    protocol_factory: Factory,
    host: str | Sequence[str] | None = None,
    port: int | str | None = None,
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
    """Listen on TCP; make a protocol for every client that comes.

    The arguments are those of `asyncio.loop.create_server`.  Port 0 means a free port,
    the same for all addresses.

    Raises:
        OSError: listening failed; the text names the host and the port.
        ValueError: the arguments contradict each other, or no port has this number.
    """
    secure = for_server(ssl, (ssl_handshake_timeout, ssl_shutdown_timeout))
    server = Server(protocol_factory, secure, backlog)
    async with server.opening(start_serving) as listeners:
        if sock is not None:
            if host is not None or port is not None:
                raise ValueError(
                    "host/port and sock can not be specified at the same time"
                )
            check_stream(sock)
            listeners.append(_taken(sock, backlog))
        elif host is None and port is None:
            raise ValueError("Neither host/port nor sock were specified")
        else:
            listeners += await listen_tcp(
                *(host, port or 0, backlog, bool(reuse_port)),
                reuse_address=reuse_address is not False,
                family=family,
                flags=flags,
            )
        for listener in listeners if keep_alive else ():
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return server


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
    """Listen on a Unix socket; make a protocol for every client that comes.

    The arguments are those of `asyncio.loop.create_unix_server`.  A socket file that a
    dead server left is replaced.  With ``cleanup_socket``, the default from Python 3.13
    on, the file is removed at the end, if it is still ours.

    Raises: as `create_server`; the path is in the text.
    """
    secure = for_server(ssl, (ssl_handshake_timeout, ssl_shutdown_timeout))
    server = Server(protocol_factory, secure, backlog)
    async with server.opening(start_serving) as listeners:
        if path is not None:
            if sock is not None:
                raise ValueError("path and sock can not be specified at the same time")
            listeners.append(listen_unix(os.fspath(path), None, backlog))
        elif sock is not None:
            check_unix(sock)
            listeners.append(listener := _taken(sock, backlog))
            if listener.address[:1] not in ("", b"", "\0", b"\0"):
                with contextlib.suppress(OSError):  # no file where it was bound
                    listener.own_file()
        else:
            raise ValueError("path was not specified, and no sock specified")
        if not cleanup_socket:
            listeners[0].file = None
        return server


def _taken(sock: socket.socket, backlog: int) -> Listener:
    sock.setblocking(False)
    sock.listen(backlog)
    return Listener(sock, sock.getsockname())


class Server(asyncio.AbstractServer):
    """The result of `create_server` and similar functions, like an `asyncio.Server`.

    `wait_closed` returns once the server is closed and its clients have gone, on every
    version of Python (asyncio's own only from 3.12 on).
    """

    def __init__(self, factory: Factory, secure: Secure | None, backlog: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._factory = (lambda: secure(factory())) if secure else factory
        self._burst = max(1, backlog)  # clients accepted before other callbacks run
        self._readiness = readiness_in(self._loop)
        self._clients: set[SocketTransport] = set()
        self._is_serving = False
        self._forever: asyncio.Future[None] | None = None
        self._over = asyncio.Event()  # the server is closed, and its clients have gone

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sockets={self.sockets!r}>"

    @property
    def sockets(self) -> tuple[TransportSocket, ...]:
        """The listening sockets; none once the server is closed."""
        return tuple(TransportSocket(each.sock) for each in self._listeners)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._is_serving

    # -- serving ------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def opening(self, start: bool) -> AsyncIterator[list[Listener]]:
        """Start the listeners that the block adds; close them if it fails."""
        try:
            yield self._listeners
            if start:
                await self.start_serving()
        except BaseException:
            self.close()
            raise

    async def start_serving(self) -> None:
        """Accept clients.  Idempotent."""
        self._start()
        await asyncio.sleep(0)

    def _start(self) -> None:
        if not self._is_serving:
            for listener in self._listeners:
                self._watch(listener)
            self._is_serving = bool(self._listeners)

    async def serve_forever(self) -> None:
        """Accept clients until this is cancelled, which closes the server.

        Raises:
            RuntimeError: the server is closed, or another task awaits this already.
        """
        if self._forever is not None:
            raise RuntimeError(f"{self!r} is already being awaited on serve_forever()")
        if not self._listeners:
            raise RuntimeError(f"{self!r} is closed")
        self._start()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            try:
                self.close()
                await self.wait_closed()
            finally:
                raise
        finally:
            self._forever = None

    def _watch(self, listener: Listener) -> None:
        if listener.sock.fileno() >= 0:
            accept = partial(self._accept, listener)
            self._readiness.watch(listener.sock.fileno(), accept)

    def _accept(self, listener: Listener) -> None:
        if self._readiness.inherited:
            return  # the client is the parent's
        for _ in range(self._burst):
            try:
                sock, address = listener.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(listener, error)
                return
            self._take(sock, address)
            if listener.sock.fileno() < 0:  # the protocol has closed the server
                return

    def _take(self, sock: socket.socket, address: Any) -> None:
        transport: SocketTransport | None = None
        with sock:  # (a transport detaches the fd from it)
            try:
                transport = transport_over(sock, self._factory())
                # (getpeername fails if the client has reset the connection)
                transport._extra["peername"] = address
                transport.on_lost = partial(self._left, transport)
                self._clients.add(transport)
                transport.begin()
            except BaseException as error:
                if transport is not None:
                    transport.abort()
                if not isinstance(error, Exception):
                    raise
                self._loop.call_exception_handler(
                    {"message": "a client was not accepted", "exception": error}
                )

    def _pause(self, listener: Listener, error: OSError) -> None:
        """Accept no clients for a while, until fds or memory may be free again."""
        self._loop.call_exception_handler(
            {
                "message": "no clients are accepted for now",
                "exception": error,
                "socket": TransportSocket(listener.sock),
            }
        )
        self._readiness.pause(listener.sock.fileno())
        self._loop.call_later(PAUSE, self._watch, listener)

    # -- the end ------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening; accepted clients stay connected."""
        for listener in self._listeners:
            if listener.sock.fileno() >= 0:
                self._readiness.forget(listener.sock.fileno())
                listener.close()
        self._listeners = []
        self._is_serving = False
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._note_end()

    def close_clients(self) -> None:
        """Close the transports of all clients."""
        for transport in tuple(self._clients):
            protocol = transport.get_protocol()
            top = protocol.upper if isinstance(protocol, TLSProtocol) else transport
            top.close()

    def abort_clients(self) -> None:
        """Close the transports of all clients at once, even with unsent data."""
        for transport in tuple(self._clients):
            transport.abort()

    def _left(self, transport: SocketTransport) -> None:
        self._clients.discard(transport)
        self._note_end()

    def _note_end(self) -> None:
        if not self._listeners and not self._clients:
            self._over.set()

    async def wait_closed(self) -> None:
        """Return once the server is closed and all its clients have gone."""
        await self._over.wait()
