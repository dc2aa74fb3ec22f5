"""TCP and UNIX servers: a handler is called with the stream of every client.

A task for each listening socket accepts, and one for each client runs the handler.
They live in a task group of the ``async with`` block, so no client outlives the server.

Only plain connections go without a copy.  With TLS every byte is encrypted, from user
memory into other user memory, and the handler gets a `tls.TLSStream`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy._core.sending import check_concurrent
from aiozerocopy._core.waiter import running_asyncio_loop
from aiozerocopy._net.admission import (
    CONNECTIONS,
    Admission,
    Crowd,
    Guest,
    NotAdmitted,
    Refusals,
    tokens_of,
)
from aiozerocopy._net.block import Service, must_end
from aiozerocopy._net.connecting import (
    DEAD_AFTER,
    check_counts,
    check_host,
    check_port,
    check_seconds,
)
from aiozerocopy._net.frame_header import FrameError, TruncatedFrame
from aiozerocopy._net.listening import EXHAUSTED, Listener, listen_tcp, listen_unix
from aiozerocopy.opening import flags_for, stream_over

if TYPE_CHECKING:
    import contextlib
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from aiozerocopy._core.sending import Concurrent
    from aiozerocopy.streams import Stream

    # (its argument is a Stream, or with TLS a TLSStream)
    Handler = Callable[..., Awaitable[object]]
    Tokens = str | bytes | Sequence[str | bytes] | None

GRACE = 5.0  # seconds that handlers have to finish when the server closes
BACKLOG = 1024
BURST = 64  # clients let in before other tasks run
LOOKS = 256  # clients let in or (which is quicker) refused before other tasks run
PAUSE = 0.1  # seconds without accepting, when there are no fds or no memory
# Seconds without accepting after a refusal, so that the next clients are handled many
# at a time.
BREATH = 0.02

log = logging.getLogger("aiozerocopy")

_NO_FRAMES = "its frames cannot be taken"
_TOO_OFTEN = "the server is full, and its address comes too often"
_FULL = "all places are taken, or those of its address"

_PEER_LEFT = (
    StreamBroken,
    StreamClosed,
    IncompleteReceive,
    TruncatedFrame,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
)


def serve_tcp(
    handler: Handler,
    host: str | None = "127.0.0.1",
    port: int = 0,
    *,
    reuse_port: bool = False,
    ssl_context: ssl.SSLContext | None = None,
    token: Tokens = None,
    max_connections: int | None = CONNECTIONS,
    max_per_address: int | None = None,
    idle_timeout: float | None = None,
    dead_after: float | None = DEAD_AFTER,
    concurrent: Concurrent = "queue",
) -> Server:
    """Serve TCP clients: ``await handler(stream)`` for each.

    ``host`` of None or "" means all addresses, of IPv4 and IPv6; ``port`` of 0 means a
    free one, the same for all of them.  With ``reuse_port`` several processes may serve
    one port.  See `Server`.

    With an ``ssl_context`` the handler gets a ``TLSStream``.  With a ``token``, or
    several, clients must show one first: see `client.present_token`.  They have five
    seconds for both, and lose their place if others need it meanwhile.  A client that
    comes when ``max_connections`` are served is sent away, and so is one whose address
    has ``max_per_address`` already (by default half of ``max_connections``; 127.0.0.1
    and ::1 have no such limit).  A client on whose connection no byte has moved for
    ``idle_timeout`` seconds is cancelled.  ``dead_after`` is as for `connect_tcp`,
    ``concurrent`` as for `open_writer`.

    Raises:
        TypeError, ValueError: the handler is not an async function, a host, a port, a
            limit or a token is impossible, ``concurrent`` is unknown, or
            ``ssl_context`` is a client's.
        OSError (when it is entered): listening failed; the text has host and port.
    """
    check_host(host)
    check_port(port)
    check_seconds(idle_timeout=idle_timeout, dead_after=dead_after)
    check_counts(1, max_connections=max_connections, max_per_address=max_per_address)
    check_concurrent(concurrent)
    where = (host, port, BACKLOG, reuse_port)
    listen = partial(listen_tcp, *where, dead_after=dead_after)
    admission = Admission(ssl_context, tokens_of(token))
    crowd = Crowd(max_connections, max_per_address)
    return Server(handler, listen, admission, crowd, idle_timeout, concurrent)


def serve_unix(
    handler: Handler,
    path: str | bytes | os.PathLike[str],
    *,
    mode: int | None = None,
    peer: str = "unknown",
    token: Tokens = None,
    max_connections: int | None = CONNECTIONS,
    idle_timeout: float | None = None,
    concurrent: Concurrent = "queue",
) -> Server:
    """Serve clients of a UNIX socket: ``await handler(stream)`` for each.

    ``mode`` is the socket file's mode.  A file that a dead server left is replaced; the
    file is removed at the end, if it is still ours.  A path that begins with a zero
    byte is a name in Linux's abstract name space.  ``peer`` is as for `open_writer`.
    See `Server`, and `serve_tcp` for the rest.

    Raises:
        TypeError, ValueError: the handler is not an async function, a mode, a limit or
            a token is impossible, or ``peer`` or ``concurrent`` is unknown.
        OSError (when it is entered): listening failed, or another process listens
            there; the text has the path.
    """

    async def listen() -> list[Listener]:
        await anyio.lowlevel.checkpoint()
        return [listen_unix(os.fspath(path), mode, BACKLOG)]

    flags_for(peer)
    check_concurrent(concurrent)
    check_seconds(idle_timeout=idle_timeout)
    check_counts(0, mode=mode)
    check_counts(1, max_connections=max_connections)
    admission = Admission(tokens=tokens_of(token))
    crowd = Crowd(max_connections)
    return Server(handler, listen, admission, crowd, idle_timeout, concurrent, peer)


@dataclass
class _Connection:
    """A client that is being served, and the time since which no byte has moved."""

    stream: Stream
    guest: Guest
    moved: int = 0
    since: float = 0.0

    def is_idle(self, now: float, timeout: float) -> bool:
        stats = self.stream.stats
        moved = stats.bytes_sent + stats.bytes_received
        if moved != self.moved or not self.since:
            self.moved, self.since = moved, now
        return now - self.since >= timeout


class Server(Service):
    """A server of `serve_tcp` or `serve_unix`.

    ``async with`` serves inside the block.  At its end the server stops accepting, and
    the handlers have `GRACE` seconds to finish (see `aclose`), or none if the block
    fails.  `serve_forever` serves until cancelled, in such a block or without one.
    Either way its addresses are logged to "aiozerocopy", at info level.

    A client's stream is closed when its handler returns.  What was accepted goes out
    first; a client that does not read it keeps its place until the ``idle_timeout``.

    If the handler raises, the stream is aborted, the error is logged to "aiozerocopy"
    (at debug level if the client merely left; at info level if it left in mid-frame;
    for other frame errors as a refusal), and the server goes on.  So it does if the
    handler awaited something of asyncio's that was cancelled.
    """

    def __init__(
        self,
        handler: Handler,
        listen: Callable[[], Awaitable[list[Listener]]],
        admission: Admission,
        crowd: Crowd,
        idle_timeout: float | None = None,
        concurrent: Concurrent = "queue",
        peer: str = "unknown",
        *,
        seats_itself: bool = False,
    ) -> None:
        """With ``seats_itself`` the handler gets the `Guest`, too, and seats it."""
        _check_handler(handler, 1 + seats_itself)
        self._refusals = Refusals()
        self._handler = handler
        self._listen = listen
        self._admission = admission
        self._crowd = crowd
        self._seats_itself = seats_itself
        self._idle_timeout = idle_timeout
        self._concurrent = concurrent
        self._peer = peer
        self._listeners: list[Listener] = []
        self._exhausted = False
        self._connections: dict[int, _Connection] = {}

    @property
    def addresses(self) -> list[Any]:
        """The addresses it listens on: (host, port) for TCP, the path for UNIX."""
        return [listener.address for listener in self._listeners]

    @property
    def port(self) -> int:
        """The TCP port, which is the same for all addresses."""
        for address in self.addresses:
            if isinstance(address, tuple):
                return int(address[1])
        if not self._listeners:
            raise AttributeError("the server is not open: use `async with server:`")
        raise AttributeError("the server listens on no TCP port")

    @property
    def connections(self) -> int:
        """How many clients are being served now."""
        return len(self._connections)

    @property
    def refused(self) -> int:
        """How many clients were sent away, not admitted, or sent frames that cannot be
        taken."""
        return self._refusals.count

    # -- its life -----------------------------------------------------------------

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        self._listeners = await self._listen()
        undo.callback(self._stop_listening)
        self._accepting = anyio.CancelScope()
        self._handling = anyio.CancelScope()
        self._ended = anyio.Event()
        tasks = await self._tasks_until(undo)
        await tasks.start(self._serve)
        log.info("listening on %s", ", ".join(map(str, self._listeners)))
        places = ", ".join(str(each) for each in self._listeners if each.is_exposed)
        if places and self._admission.lacks:
            lacks = " or ".join(self._admission.lacks)
            log.warning("other machines can reach %s, without %s", places, lacks)

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
                    await self._accept_all(clients, task_status)
        finally:
            self._ended.set()

    async def _accept_all(
        self, clients: TaskGroup, task_status: TaskStatus[None]
    ) -> None:
        try:
            with self._accepting:
                async with anyio.create_task_group() as tasks:
                    if self._idle_timeout is not None:
                        tasks.start_soon(self._cancel_idle, self._idle_timeout)
                    for listener in self._listeners:
                        tasks.start_soon(self._accept, listener, clients)
                    task_status.started()
        finally:
            self._stop_listening()

    async def _accept(self, listener: Listener, clients: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.sock)
            refused = self._refusals.count
            let_in = 0
            for _ in range(LOOKS):
                try:
                    connection = self._accept_one(listener.sock)
                except OSError as error:
                    await self._pause_if_exhausted(error)
                    break
                if connection is None:
                    continue
                self._connections[id(connection)] = connection
                clients.start_soon(self._serve_client, connection)
                let_in += 1
                if let_in == BURST:
                    break
            if self._refusals.count != refused:
                await anyio.sleep(BREATH)

    def _let_in(self, address: str) -> Guest | None:
        """Return the new client as a guest; None if there is no room for it."""
        if self._crowd.is_full:
            if self._crowd.comes_too_often(address):
                self._refusals.note(address, _TOO_OFTEN)
                return None
            other = self._crowd.make_room()
            if other is None:
                self._refusals.note(address, _FULL)
                return None
            self._refusals.note(other.address, "it waited, and others need room")
        guest = self._crowd.enter(address)
        if self._admission.asks or self._seats_itself or self._crowd.seat(guest):
            return guest
        self._crowd.leave(guest)
        self._refusals.note(address, _FULL)
        return None

    def _accept_one(self, listener: socket.socket) -> _Connection | None:
        """Return the next client; None if it was refused.

        Raises:
            OSError: no client waits, or it has left, or there are no fds or no memory.
        """
        sock, peer = listener.accept()
        with sock:
            guest = self._let_in(peer[0] if isinstance(peer, tuple) else "")
            if guest is None:
                self._exhausted = False
                return None
            try:
                stream = stream_over(sock, self._concurrent, self._peer)
            except BaseException:
                self._crowd.leave(guest)
                raise
        self._exhausted = False
        return _Connection(stream, guest)

    async def _pause_if_exhausted(self, error: OSError) -> None:
        """Wait until fds or memory may have been freed; log their lack once."""
        if error.errno in EXHAUSTED:
            if not self._exhausted:
                self._exhausted = True
                log.error("no clients are accepted for now: %s", error.strerror)
            await anyio.sleep(PAUSE)

    async def _serve_client(self, connection: _Connection) -> None:
        try:
            with connection.guest.scope:
                await self._handle(connection.stream, connection.guest)
        except FrameError as error:
            address = connection.guest.address
            if isinstance(error, TruncatedFrame):
                log.info("%s left in mid-frame: %s", address or "a client", error)
            else:
                self._refusals.note(address, _NO_FRAMES, f": {error}")
        except Exception as error:
            level = logging.DEBUG if _only_left(error) else logging.ERROR
            log.log(level, "the handler of a client failed", exc_info=True)
        except asyncio.CancelledError:
            if must_end():
                raise
            level = logging.DEBUG if _was_cancelled() else logging.ERROR
            log.log(level, "the handler of a client was cancelled", exc_info=True)
        finally:
            connection.stream.abort()  # (nothing if it was closed)
            self._crowd.leave(connection.guest)
            del self._connections[id(connection)]

    async def _handle(self, stream: Stream, guest: Guest) -> None:
        try:
            admitted = await self._admission.admit(stream)
        except NotAdmitted as error:
            self._refusals.note(guest.address, str(error))
            return
        except Exception:
            self._refusals.note(guest.address, "it left, or does not speak TLS")
            log.debug("a client was not admitted", exc_info=True)
            return
        if self._seats_itself:
            await self._handler(admitted, guest)
        elif not self._admission.asks or self._crowd.seat(guest):
            await self._handler(admitted)
        else:
            self._refusals.note(guest.address, _FULL)
        await admitted.aclose()

    async def _cancel_idle(self, limit: float) -> None:
        """Cancel connections on which no byte has moved for ``limit`` seconds."""
        while True:
            await anyio.sleep(limit / 4)
            now = anyio.current_time()
            for connection in list(self._connections.values()):
                if connection.is_idle(now, limit):
                    connection.guest.scope.cancel()


def _check_handler(handler: Any, arguments: int) -> None:
    """Refuse a plain function, or one of other arguments, before the first client.

    (A lambda is accepted: it may return another function's coroutine.)
    """
    inner = handler
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner) if callable(inner) else None
    if inspect.isfunction(inner) or inspect.ismethod(inner):
        fits = inspect.iscoroutinefunction(inner) or inner.__name__ == "<lambda>"
    else:
        fits = inner is not None
    if not (fits and _takes(handler, arguments)):
        raise TypeError(
            f"the handler must be an async function of one stream, not {handler!r}: "
            "write async def handler(stream)"
        )


def _takes(handler: Callable[..., object], arguments: int) -> bool:
    try:
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # (a callable that does not tell)
        return True
    try:
        signature.bind(*(None,) * arguments)
    except TypeError:
        return False
    return True


def _was_cancelled() -> bool:
    """Return whether somebody meant this very task, as asyncio does when it ends.

    (Python 3.10 does not know.)
    """
    task = asyncio.current_task() if running_asyncio_loop() is not None else None
    return bool(getattr(task, "cancelling", int)())


def _only_left(error: BaseException) -> bool:
    """Return whether the error, or each in the group, only means that the peer left."""
    errors = getattr(error, "exceptions", None)
    if errors is None:
        return isinstance(error, _PEER_LEFT)
    return all(map(_only_left, errors))
