"""StreamListener: it makes a comm of every connection, and calls the handler.

Who owns what.  The listening sockets are the listener's, from `start` to `stop`.  An
accepted connection belongs to a task of its own, which makes a comm of it, does Dask's
handshake and calls the handler.  `stop` leaves comms alone, but closes connections that
have not become comms.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import dask
from distributed.comm.core import BaseListener, CommClosedError
from distributed.system import MEMORY_LIMIT

from aiozerocopy._net.listening import EXHAUSTED
from aiozerocopy.dask.comm import StreamComm, location_of, refuse_to_encrypt, timeout
from aiozerocopy.opening import stream_over

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aiozerocopy._net.listening import Listener as Listening
    from aiozerocopy.dask.comm import Link
    from aiozerocopy.streams import Stream

logger: logging.Logger = logging.getLogger("distributed.comm.azc")

BURST = 64  # connections accepted before other tasks run
HANDSHAKE = 16 << 10  # the most bytes of a handshake
PAUSE = 0.1  # seconds without accepting, when fds or memory are exhausted


class StreamListener(BaseListener):
    """Base of the listeners of all our protocols."""

    prefix: ClassVar[str]
    comm_class: type[StreamComm]

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[StreamComm], object],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        **connection_args: Any,
    ) -> None:
        """Check the arguments; `start` opens the sockets.

        A listener on all addresses of the machine has ``default_host`` in its contact
        address.  ``connection_args`` are those of Dask's `Security`.

        Raises:
            ValueError: not an address.
            RuntimeError: Dask must encrypt, and this protocol does not.
        """
        super().__init__()
        refuse_to_encrypt(self.prefix, connection_args)
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.default_host = default_host
        self._sockets: list[Listening] | None = None  # None: it does not listen
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._linking: set[Stream] = set()  # those that are no comms yet
        self._is_exhausted = False

    # -- start and stop -----------------------------------------------------------

    async def start(self) -> None:
        """Listen.

        Raises: OSError: listening failed; the text names the address.
        """
        self._loop = asyncio.get_running_loop()
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        self._sockets = await self._listen(backlog)
        for each in self._sockets:
            self._loop.add_reader(each.sock, self._accept, each.sock)

    def stop(self) -> None:
        """Stop listening; comms stay open."""
        try:
            self._close()
        finally:
            self._close()  # the first call may be interrupted

    def _close(self) -> None:
        for each in self._sockets or ():
            if each.sock.fileno() >= 0:
                self._loop.remove_reader(each.sock)
                each.close()
        self._sockets = None
        for stream in tuple(self._linking):
            stream.abort()

    async def _listen(self, backlog: int) -> list[Listening]:
        raise NotImplementedError

    def _require_started(self) -> None:
        if self._sockets is None:
            raise ValueError(f"this {type(self).__name__} is not listening")

    # -- connections --------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BURST):
            try:
                sock, address = listening.accept()
            except OSError as error:
                # Any other error: no connection is pending, or it was reset.
                if error.errno in EXHAUSTED:
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
            is_usual = isinstance(error, CommClosedError)
            level = logging.INFO if is_usual else logging.ERROR
            logger.log(level, "the handler of a connection failed", exc_info=error)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept no connection for a while, in which others may free fds or memory."""
        if not self._is_exhausted:
            self._is_exhausted = True
            logger.error("no connections are accepted for now: %s", error.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if any(each.sock is listening for each in self._sockets or ()):
            self._loop.add_reader(listening, self._accept, listening)

    async def _serve(self, stream: Stream, address: Any) -> None:
        what: Stream | StreamComm = stream
        try:
            local = self.prefix + location_of(stream._raw_socket.getsockname())
            peer = self.prefix + location_of(address)
            self._linking.add(stream)
            link = await self._link(stream, peer) if self._sockets else None
            self._linking.discard(stream)
            if link is None or self._sockets is None:
                stream.abort()
                return
            what = comm = self.comm_class(link, local, peer, self.deserialize)
            comm.allow_offload = self.allow_offload
            comm._most = HANDSHAKE  # until the handshake, the peer may be anyone
            with anyio.fail_after(timeout("connect")):
                await self.on_connection(comm)
            comm._most = MEMORY_LIMIT
        except BaseException as error:
            what.abort()
            self._linking.discard(stream)
            if not isinstance(error, (CommClosedError, TimeoutError)):
                raise
            logger.info("no handshake: %s", str(error) or f"{what!r} took too long")
            return
        result = self.comm_handler(comm)
        if inspect.isawaitable(result):
            await result

    async def _link(self, stream: Stream, peer: str) -> Link | None:
        """Return the stream for the comm; None if the connection must not get one."""
        return stream
