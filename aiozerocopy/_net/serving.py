"""TCP and Unix servers: a handler is called with the stream of every client.

One task for each listening socket accepts, one for each client runs the handler.  They
live in a task group of the ``async with`` block, so no client outlives the server.

Which path is without a copy: the plain one.  With TLS every byte is encrypted, from
user memory into other user memory, and the handler gets anyio's ``TLSStream``; frames
are still sent whole there, by `framing` and `broadcast`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy._net.admission import Entrance, NotAdmitted, token_bytes
from aiozerocopy._net.block import Service
from aiozerocopy._net.listening import listen_tcp, listen_unix
from aiozerocopy.opening import stream_over

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from aiozerocopy._net.listening import Listener
    from aiozerocopy.streams import Stream

    # of a Stream, or with TLS of a TLSStream: anyio's ByteStream both
    Handler = Callable[[Any], Awaitable[object]]

GRACE = 5.0  # seconds that handlers have to finish when the server closes
BACKLOG = 1024
BURST = 64  # clients accepted before other tasks have their turn
PAUSE = 0.1  # seconds without accepting, when there are no fds or no memory

log = logging.getLogger("aiozerocopy")

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PEER_LEFT = (
    StreamBroken,
    StreamClosed,
    IncompleteReceive,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    NotAdmitted,
)


def serve_tcp(
    handler: Handler,
    host: str | None = "127.0.0.1",
    port: int = 0,
    *,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
    ssl_context: ssl.SSLContext | None = None,
    token: str | bytes | None = None,
    max_connections: int | None = None,
    idle_timeout: float | None = None,
) -> Server:
    """Serve TCP clients: ``await handler(stream)`` for each.

    ``host`` of None or "" means all addresses, of IPv4 and IPv6; ``port`` of 0 means a
    free one, the same for all of them.  See `Server`.

    With an ``ssl_context`` the handler gets a ``TLSStream``.  With a ``token`` clients
    must show it first: see `client.present_token`.  Who comes when ``max_connections``
    clients are there is sent away, and a client is cancelled for which nothing went in
    or out for ``idle_timeout`` seconds.

    Raises (when it is awaited or entered):
        OSError: it cannot listen there; host and port are in the text.
    """

    def listen() -> Awaitable[list[Listener]]:
        return listen_tcp(host, port, backlog, reuse_port)

    entrance = Entrance(ssl_context, token_bytes(token))
    return Server(handler, listen, entrance, max_connections, idle_timeout)


def serve_unix(
    handler: Handler,
    path: str | bytes | os.PathLike[str],
    *,
    mode: int | None = None,
    backlog: int = BACKLOG,
    token: str | bytes | None = None,
    max_connections: int | None = None,
    idle_timeout: float | None = None,
) -> Server:
    """Serve clients of a Unix socket: ``await handler(stream)`` for each.

    ``mode`` is the socket file's mode.  A file that a dead server left is replaced; the
    file is removed at the end, if it is still ours.  A path that begins with a zero
    byte is a name in Linux's abstract name space.  See `Server`, and `serve_tcp` for
    what else there is.

    Raises (when it is awaited or entered):
        OSError: it cannot listen there, or somebody else does; the path is in the text.
    """

    async def listen() -> list[Listener]:
        await anyio.lowlevel.checkpoint()
        return [listen_unix(os.fspath(path), mode, backlog)]

    entrance = Entrance(token=token_bytes(token))
    return Server(handler, listen, entrance, max_connections, idle_timeout)


@dataclass
class _Guest:
    """A client that is being served, and when it last moved a byte."""

    stream: Stream
    scope: anyio.CancelScope
    moved: int = 0
    since: float = 0.0

    def is_idle(self, now: float, timeout: float) -> bool:
        stats = self.stream.stats
        moved = stats.bytes_sent + stats.bytes_received
        if moved != self.moved or not self.since:
            self.moved, self.since = moved, now
        return now - self.since >= timeout


class Server(Service):
    """What `serve_tcp` and `serve_unix` return.

    ``async with`` serves inside of the block.  At its end the server stops accepting,
    and the handlers have `GRACE` seconds to finish (see `aclose`); when the block
    fails, none.

    ``await`` serves until cancelled and never returns, for the clients' tasks need a
    block to end with.  Either way "aiozerocopy" logs where it listens, at info level.

    A client's stream is closed when its handler returns.  If the handler raises, the
    stream is aborted, the error is logged to "aiozerocopy" (for a client that merely
    left, at debug level), and the server goes on.
    """

    def __init__(
        self,
        handler: Handler,
        listen: Callable[[], Awaitable[list[Listener]]],
        entrance: Entrance,
        max_connections: int | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        self.refused = 0  # clients that were sent away, or did not get in
        self._handler = handler
        self._listen = listen
        self._entrance = entrance
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._listeners: list[Listener] = []
        self._exhausted = False
        self._guests: dict[int, _Guest] = {}

    @property
    def addresses(self) -> list[Any]:
        """What it listens on: (host, port) for TCP, the path for Unix."""
        return [listener.address for listener in self._listeners]

    @property
    def port(self) -> int:
        """The TCP port, which is the same for all addresses."""
        for address in self.addresses:
            if isinstance(address, tuple):
                return int(address[1])
        raise AttributeError("it listens on no TCP port")

    @property
    def connections(self) -> int:
        """How many clients are being served now."""
        return len(self._guests)

    # -- its life -----------------------------------------------------------------

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        self._listeners = await self._listen()
        undo.callback(self._stop_listening)
        self._accepting = anyio.CancelScope()
        self._handling = anyio.CancelScope()
        self._ended = anyio.Event()
        tasks = await undo.enter_async_context(anyio.create_task_group())
        await tasks.start(self._serve)
        log.info("listening on %s", ", ".join(map(str, self._listeners)))

    async def aclose(self, grace: float | None = GRACE) -> None:
        """Stop accepting; cancel the handlers that do not end in ``grace`` seconds.

        With a ``grace`` of None they may take as long as they like.
        """
        if self._undo is None:
            return
        self._accepting.cancel()
        try:
            with anyio.move_on_after(grace):
                await self._ended.wait()
        finally:
            self._handling.cancel()
        await self._ended.wait()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    # -- its tasks ----------------------------------------------------------------

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._handling:
                async with anyio.create_task_group() as clients:
                    with self._accepting:
                        async with anyio.create_task_group() as accepting:
                            if self._idle_timeout is not None:
                                accepting.start_soon(self._sweep, self._idle_timeout)
                            for listener in self._listeners:
                                accepting.start_soon(self._accept, listener, clients)
                            task_status.started()
                    self._stop_listening()
        finally:
            self._ended.set()

    async def _accept(self, listener: Listener, clients: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.sock)
            for _ in range(BURST):
                sock = await self._accept_one(listener.sock)
                if sock is None:
                    break
                if len(self._guests) == self._max_connections:
                    sock.close()
                    self.refused += 1
                    continue
                guest = self._receive_guest(sock)
                clients.start_soon(self._serve_client, guest)

    async def _accept_one(self, listener: socket.socket) -> socket.socket | None:
        """The next client; None if there is none now."""
        try:
            sock, _ = listener.accept()
        except OSError as error:
            # All but these mean that nobody waits, or that who waited left again.
            if error.errno in _EXHAUSTED:
                await self._pause(error)
            return None
        self._exhausted = False
        return sock

    async def _pause(self, error: OSError) -> None:
        """Wait until somebody has given something back; say so once."""
        if not self._exhausted:
            self._exhausted = True
            log.error("no clients are accepted for now: %s", error.strerror)
        await anyio.sleep(PAUSE)

    def _receive_guest(self, sock: socket.socket) -> _Guest:
        with sock:
            stream = stream_over(sock)
            guest = _Guest(stream, anyio.CancelScope())
        self._guests[id(guest)] = guest
        return guest

    async def _serve_client(self, guest: _Guest) -> None:
        try:
            with guest.scope:
                await self._entertain(guest.stream)
        except Exception as error:
            level = logging.DEBUG if _has_left(error) else logging.ERROR
            log.log(level, "the handler of a client failed", exc_info=True)
        finally:
            guest.stream.abort()  # nothing is left to do if it was closed
            del self._guests[id(guest)]

    async def _entertain(self, stream: Stream) -> None:
        try:
            admitted = await self._entrance.admit(stream)
        except Exception:
            self.refused += 1
            log.debug("a client was not admitted", exc_info=True)
            return
        await self._handler(admitted)
        if admitted is not stream:  # TLS says goodbye, and waits for an answer
            # (from whom nothing comes, or what is no TLS: ssl.SSLError is an OSError)
            with anyio.move_on_after(GRACE), contextlib.suppress(OSError):
                await admitted.aclose()
        await stream.aclose()

    async def _sweep(self, limit: float) -> None:
        """Cancel those for whom nothing has moved."""
        while True:
            await anyio.sleep(limit / 4)
            now = anyio.current_time()
            for guest in list(self._guests.values()):
                if guest.is_idle(now, limit):
                    guest.scope.cancel()


def _has_left(error: BaseException) -> bool:
    """Does the error, or do all in the group, mean no more than that the peer left?"""
    errors = getattr(error, "exceptions", None)
    if errors is None:
        return isinstance(error, _PEER_LEFT)
    return all(map(_has_left, errors))
