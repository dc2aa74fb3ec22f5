"""TCP and Unix clients: the connection of anyio's or our own, then a stream over it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute

from aiozerocopy.opening import stream_over

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from anyio.abc import SocketStream

    from aiozerocopy.streams import Stream

BACKLOG_IS_FULL = 0.01  # seconds between attempts to connect to a busy Unix server


T = TypeVar("T", bound="AbstractAsyncContextManager[Any, Any]")


class Opening(Generic[T]):
    """Something that takes time to open: ``await`` it, or open it by ``async with``."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: T

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(exc_type, exc_val, exc_tb)


def connect_tcp(
    host: str,
    port: int,
    *,
    timeout: float | None = None,
    local_host: str | None = None,
    happy_eyeballs_delay: float = 0.25,
    nodelay: bool = True,
) -> Opening[Stream]:
    """Connect to a TCP server; to be awaited, or used with ``async with``.

    Of a name's addresses the first to answer wins; each is given
    ``happy_eyeballs_delay`` seconds before the next is tried as well.

    Raises:
        OSError: nobody answered, the name is unknown, or ``timeout`` (TimeoutError);
            host and port are in the text.
    """

    async def connect() -> Stream:
        try:
            with anyio.fail_after(timeout):
                connected = await anyio.connect_tcp(
                    host,
                    port,
                    local_host=local_host,
                    happy_eyeballs_delay=happy_eyeballs_delay,
                )
        except OSError as error:
            raise located(error, f"cannot connect to {host}:{port}") from error
        return await _take_over(connected, nodelay)

    return Opening(connect())


async def _take_over(connected: SocketStream, nodelay: bool) -> Stream:
    """Our stream over the connection of anyio's, which is closed.

    No byte is lost, although the peer may send at once.  On trio nobody reads unasked.
    On asyncio and uvloop a transport has the socket, and uvloop's has often read some
    by now.  It stops when it is aborted, and what it had read is in anyio's queue,
    which `receive` gives out even after the end.  Aborted before it is closed: to
    close it would first tell the peer that no more will come (in anyio before 4.16;
    only there is the private name needed, so it may go away).
    """
    with anyio.CancelScope(shield=True), contextlib.ExitStack() as ours:
        try:
            theirs = connected.extra(SocketAttribute.raw_socket)
            fd = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
            sock = ours.enter_context(socket.socket(fileno=fd))
        finally:
            transport = getattr(connected, "_transport", None)
            if transport is not None:
                transport.abort()
            await connected.aclose()
        early = await _read_before(connected)
        with contextlib.suppress(OSError):  # the peer may have gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
        stream = stream_over(sock)
        stream._unread = early
    return stream


async def _read_before(closed: SocketStream) -> bytes:
    """What a closed stream had received from its socket and not yet given out."""
    data = b""
    with contextlib.suppress(
        anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError
    ):
        while True:
            data += await closed.receive()
    return data


def connect_unix(path: str | bytes | os.PathLike[str]) -> Opening[Stream]:
    """Connect to a Unix server; to be awaited, or used with ``async with``.

    A path that begins with a zero byte is a name in Linux's abstract name space.

    Raises:
        OSError: nobody listens there; the path is in the text.
    """

    async def connect() -> Stream:
        await anyio.lowlevel.checkpoint()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(os.fspath(path))
                except BlockingIOError:  # noqa: PERF203
                    # The server's backlog is full, and no fd tells when it is not.
                    await anyio.sleep(BACKLOG_IS_FULL)
                except OSError as error:
                    raise located(error, f"cannot connect to {path!r}") from error
                else:
                    return stream_over(sock)

    return Opening(connect())


def located(error: OSError, place: str) -> OSError:
    """The same error, saying where it happened."""
    first: Any = error
    if error.errno is None and error.__cause__ is not None:
        # anyio's "all attempts failed": the first of them says why.
        first = getattr(error.__cause__, "exceptions", [error.__cause__])[0]
    if isinstance(first, TimeoutError) and first.errno is None:
        return TimeoutError(errno.ETIMEDOUT, f"{place}: the time is over")
    if not isinstance(first, OSError) or first.errno is None:
        return OSError(errno.EINVAL, f"{place}: {first}")
    return type(first)(first.errno, f"{place}: {first.strerror}")
