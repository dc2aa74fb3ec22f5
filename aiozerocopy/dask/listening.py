"""Listeners: every connection becomes a comm, and its handler is called.

Who owns what.  The listening sockets are the listener's, from `start` to `stop`.  A
connection that was accepted belongs to a task of its own until it is a comm, and then
to that comm; the task goes on with Dask's handshake and with the handler, and `stop`
leaves it alone.  What was accepted but is no comm yet when the listener stops is
closed.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import ssl
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import dask
from dask.utils import parse_timedelta
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError
from distributed.comm.utils import ensure_concrete_host

from aiozerocopy._net.listening import listen_tcp
from aiozerocopy.dask.comm import LOST
from aiozerocopy.dask.connecting import (
    local_location,
    refuse_to_encrypt,
    tls_context,
)
from aiozerocopy.dask.kinds import TCPComm, TLSComm, UnixComm
from aiozerocopy.dask.secure import SecureStream
from aiozerocopy.dask.unix import Place, location_of
from aiozerocopy.opening import stream_over

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aiozerocopy._net.listening import Listener as Listening
    from aiozerocopy.dask.comm import StreamComm
    from aiozerocopy.streams import Stream

logger: logging.Logger = logging.getLogger("distributed.comm.azc")

BURST = 64  # connections accepted before other tasks run
PAUSE = 0.1  # seconds without accepting, when there are no fds or no memory
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class StreamListener(BaseListener):
    """What the listeners of all our protocols share."""

    prefix: ClassVar[str]
    encrypted: ClassVar[bool] = False

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[StreamComm], object],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        **connection_args: Any,
    ) -> None:
        """Look at the arguments; nothing is opened yet.

        ``default_host`` is the contact address's where the listener has all addresses
        of the machine; ``connection_args`` are those of Dask's `Security`.

        Raises:
            ValueError: the address is none.
            RuntimeError: this protocol has no TLS, and Dask is told to encrypt.
        """
        super().__init__()
        if not self.encrypted:
            refuse_to_encrypt(self.prefix, connection_args)
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.default_host = default_host
        self._sockets: list[Listening] | None = None  # None: it does not listen
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_exhausted = False

    # -- its life -----------------------------------------------------------------

    async def start(self) -> None:
        """Listen.

        Raises: OSError: it cannot listen there; the address is in the text.
        """
        self._loop = asyncio.get_running_loop()
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        self._sockets = await self._listen(backlog)
        for each in self._sockets:
            self._loop.add_reader(each.sock, self._accept, each.sock)

    def stop(self) -> None:
        """Stop listening; comms that exist go on."""
        sockets, self._sockets = self._sockets, None
        for each in sockets or ():
            self._loop.remove_reader(each.sock)
            each.close()

    async def _listen(self, backlog: int) -> list[Listening]:
        raise NotImplementedError

    def _require_started(self) -> None:
        if self._sockets is None:
            raise ValueError(f"this {type(self).__name__} does not listen")

    # -- who comes ----------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BURST):
            try:
                sock, address = listening.accept()
            except OSError as error:
                # Any other error: nobody waits, or whoever did has left again.
                if error.errno in _EXHAUSTED:
                    self._pause(listening, error)
                return
            self._is_exhausted = False
            with sock:
                stream = stream_over(sock)
            task = self._loop.create_task(self._serve(stream, address))
            self._tasks.add(task)
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = (
                logging.INFO if isinstance(error, CommClosedError) else logging.ERROR
            )
            logger.log(level, "the handler of a connection failed", exc_info=error)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Wait for others to give something back; log it once."""
        if not self._is_exhausted:
            self._is_exhausted = True
            logger.error("no connections are accepted for now: %s", error.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if any(each.sock is listening for each in self._sockets or ()):
            self._loop.add_reader(listening, self._accept, listening)

    async def _serve(self, stream: Stream, address: Any) -> None:
        try:
            comm = await self._comm_of(stream, address)
        except BaseException:
            stream.abort()
            raise
        if comm is None:
            stream.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("%r ended before the handshake did", comm)
            return
        except BaseException:
            comm.abort()
            raise
        result = self.comm_handler(comm)
        if inspect.isawaitable(result):
            await result

    async def _comm_of(self, stream: Stream, address: Any) -> StreamComm | None:
        """A comm for a new connection; None if there is to be none."""
        peer = self.prefix + self._peer_location(address)
        comm = await self._comm(stream, peer)
        if comm is None or self._sockets is None:
            return None
        comm.allow_offload = self.allow_offload
        return comm

    def _peer_location(self, address: Any) -> str:
        raise NotImplementedError

    async def _comm(self, stream: Stream, peer: str) -> StreamComm | None:
        raise NotImplementedError


class TCPListener(StreamListener):
    prefix = "azc://"
    comm_class: type[TCPComm] = TCPComm

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[StreamComm], object],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        """As for all; ``default_port`` is for an address without a port."""
        self._host, self._port = parse_host_port(address, default_port)
        super().__init__(
            address,
            comm_handler,
            deserialize,
            allow_offload,
            default_host,
            **connection_args,
        )

    async def _listen(self, backlog: int) -> list[Listening]:
        return await listen_tcp(self._host, self._port, backlog, reuse_port=False)

    def _peer_location(self, address: Any) -> str:
        return unparse_host_port(*address[:2])

    async def _comm(self, stream: Stream, peer: str) -> StreamComm | None:
        local = self.prefix + local_location(stream)
        return self.comm_class(stream, local, peer, self.deserialize)

    def get_host_port(self) -> tuple[str, int]:
        """Where it listens; of several addresses one of IPv4, if there is one.

        Raises: ValueError: it does not listen.
        """
        self._require_started()
        assert self._sockets
        addresses = [each.address for each in self._sockets]
        host, port = min(addresses, key=lambda address: ":" in address[0])
        return host, port

    @property
    def listen_address(self) -> str:
        return self.prefix + unparse_host_port(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        host = ensure_concrete_host(host, default_host=self.default_host)
        return self.prefix + unparse_host_port(host, port)


class TLSListener(TCPListener):
    prefix = "azc+tls://"
    comm_class: type[TLSComm] = TLSComm
    encrypted = True

    def __init__(self, *args: Any, **connection_args: Any) -> None:
        """As for all.

        Raises: TypeError: Dask was given no certificates.
        """
        super().__init__(*args, **connection_args)
        self._context = tls_context(self.prefix, connection_args)

    async def _comm(self, stream: Stream, peer: str) -> StreamComm | None:
        local = self.prefix + local_location(stream)
        secure = SecureStream(stream, self._context, server_side=True)
        timeout = dask.config.get("distributed.comm.timeouts.connect")
        try:
            with anyio.fail_after(parse_timedelta(timeout)):
                await secure.handshake()
        except (*LOST, ssl.SSLError, TimeoutError) as error:
            logger.warning("TLS with %s failed: %s", peer, str(error) or "it has left")
            return None
        return self.comm_class(secure, local, peer, self.deserialize)


class UnixListener(StreamListener):
    prefix = "azc+unix://"

    def __init__(self, address: str, *args: Any, **options: Any) -> None:
        super().__init__(address, *args, **options)
        self._location = address
        self._place: Place | None = None

    async def _listen(self, backlog: int) -> list[Listening]:
        self._place = Place(self._location)
        return [self._place.listen(backlog)]

    def stop(self) -> None:
        super().stop()
        if self._place is not None:
            self._place.remove()

    def _peer_location(self, address: Any) -> str:
        return location_of(address)

    async def _comm(self, stream: Stream, peer: str) -> StreamComm | None:
        assert self._place is not None
        local = self.prefix + self._place.path  # also if it stops just now
        return UnixComm(stream, local, peer, self.deserialize)

    @property
    def listen_address(self) -> str:
        self._require_started()
        assert self._place is not None
        return self.prefix + self._place.path

    @property
    def contact_address(self) -> str:
        return self.listen_address
