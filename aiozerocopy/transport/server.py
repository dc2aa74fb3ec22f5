"""A server: it listens, takes clients, and ends."""

from __future__ import annotations

import asyncio
import errno
from asyncio.trsock import TransportSocket
from functools import partial
from typing import TYPE_CHECKING

from aiozerocopy.transport.readiness import readiness_in
from aiozerocopy.transport.sockets import transport_over
from aiozerocopy.transport.tls import TLSTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aiozerocopy._net.listening import Listener
    from aiozerocopy.transport.sockets import SocketTransport

    Factory = Callable[[], asyncio.BaseProtocol]

PAUSE = 1.0  # seconds without accepting, when there are no fds or no memory

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Server(asyncio.AbstractServer):
    """What `create_server` and its like return: `asyncio.Server`, as documented there.

    `wait_closed` returns once the server is closed and its clients have gone, on every
    version of Python (asyncio's own: from 3.12 on).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listeners: list[Listener],
        protocol_factory: Factory,
        backlog: int,
    ) -> None:
        self._loop = loop
        self._listeners = listeners
        self._factory = protocol_factory
        self._burst = backlog  # clients taken before others have their turn
        self._readiness = readiness_in(loop)
        self._clients: set[SocketTransport] = set()
        self._is_serving = False
        self._forever: asyncio.Future[None] | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sockets={self.sockets!r}>"

    @property
    def sockets(self) -> tuple[TransportSocket, ...]:
        """Those that it listens on; none once it is closed."""
        return tuple(TransportSocket(each.sock) for each in self._listeners)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        """Does it take clients?"""
        return self._is_serving

    # -- serving ------------------------------------------------------------------

    async def start_serving(self) -> None:
        """Take clients.  Called again, it does nothing."""
        self._start()
        await asyncio.sleep(0)

    def _start(self) -> None:
        if not self._is_serving:
            for listener in self._listeners:
                self._watch(listener)
            self._is_serving = bool(self._listeners)

    async def serve_forever(self) -> None:
        """Take clients until this is cancelled, which closes the server.

        Raises:
            RuntimeError: it is closed, or somebody awaits this already.
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
        """Somebody has come."""
        if self._readiness.inherited:
            return  # to the parent
        for _ in range(self._burst):
            try:
                sock, _ = listener.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listener, error)
                return
            self._take(sock)
            if listener.sock.fileno() < 0:  # the protocol has closed the server
                return

    def _take(self, sock: socket.socket) -> None:
        transport: SocketTransport | None = None
        with sock:  # (a transport takes it out of the object)
            try:
                transport = transport_over(self._loop, sock, self._factory())
                transport.on_lost = partial(self._left, transport)
                self._clients.add(transport)
                transport.begin()
            except BaseException as error:
                if transport is not None:
                    transport.abort()
                if not isinstance(error, Exception):
                    raise
                context = {"message": "a client was not taken", "exception": error}
                self._loop.call_exception_handler(context)

    def _pause(self, listener: Listener, error: OSError) -> None:
        """Wait for others to give something back."""
        self._loop.call_exception_handler(
            {
                "message": "no clients are accepted for now",
                "exception": error,
                "socket": TransportSocket(listener.sock),
            }
        )
        self._readiness.pause(listener.sock.fileno())
        self._loop.call_later(PAUSE, self._watch, listener)

    # -- its end ------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening; clients that have come stay."""
        for listener in self._listeners:
            if listener.sock.fileno() >= 0:
                self._readiness.forget(listener.sock.fileno())
                listener.close()
        self._listeners = []
        self._is_serving = False
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._wake_if_over()

    def close_clients(self) -> None:
        """Close the transports of all clients."""
        for transport in tuple(self._clients):
            protocol = transport.get_protocol()
            (protocol if isinstance(protocol, TLSTransport) else transport).close()

    def abort_clients(self) -> None:
        """Close them at once, whatever was not sent."""
        for transport in tuple(self._clients):
            transport.abort()

    def _left(self, transport: SocketTransport) -> None:
        self._clients.discard(transport)
        self._wake_if_over()

    def _wake_if_over(self) -> None:
        if not self._listeners and not self._clients:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_closed(self) -> None:
        """Return once it is closed and all its clients have gone."""
        if not self._listeners and not self._clients:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
