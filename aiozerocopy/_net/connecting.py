"""TCP and Unix clients: a connection, then a stream over it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from aiozerocopy._net.happy_eyeballs import connect_first, look_up
from aiozerocopy.opening import stream_over, unix_stream_over

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aiozerocopy._core.sending import Concurrent
    from aiozerocopy._net.happy_eyeballs import Candidate
    from aiozerocopy.streams import Stream, UnixStream

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
    local_port: int = 0,
    happy_eyeballs_delay: float = 0.25,
    nodelay: bool = True,
    concurrent: Concurrent = "queue",
) -> Opening[Stream]:
    """Connect to a TCP server; to be awaited, or used with ``async with``.

    Of a name's addresses the first to answer wins; each is given
    ``happy_eyeballs_delay`` seconds, or until it fails, before the next is tried as
    well.  The connection begins at an address of ``local_host``, if that is given, and
    at ``local_port`` there.
    ``concurrent`` is as for `open_writer`.  If it is cancelled, no socket is left open.

    Raises:
        OSError: nobody answered, the name is unknown, or ``timeout`` (TimeoutError);
            host and port are in the text, and the addresses if many were tried.  If
            nobody answered, its cause is the error of the one address, or an
            ExceptionGroup of all.
    """

    async def connect() -> Stream:
        try:
            with anyio.fail_after(timeout):
                local = await _local(local_host, local_port)
                sock = await _connected(host, port, local, happy_eyeballs_delay)
        except OSError as error:
            place = f"cannot connect to {host}:{port}"
            raise located(error, place) from error.__cause__ or error
        with sock:
            with contextlib.suppress(OSError):  # the peer may have gone already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
            return stream_over(sock, concurrent)

    return Opening(connect())


async def _local(host: str | None, port: int) -> Candidate | None:
    return (await look_up(host, port))[0] if host else None


async def _connected(
    host: str, port: int, local: Candidate | None, delay: float
) -> socket.socket:
    family, address = local or (socket.AF_UNSPEC, None)
    return await connect_first(await look_up(host, port, family), address, delay)


def connect_unix(
    path: str | bytes | os.PathLike[str], *, concurrent: Concurrent = "queue"
) -> Opening[UnixStream]:
    """Connect to a Unix server; to be awaited, or used with ``async with``.

    A path that begins with a zero byte is a name in Linux's abstract name space.
    ``concurrent`` is as for `open_writer`.

    Raises:
        OSError: nobody listens there; the path is in the text.
    """

    async def connect() -> UnixStream:
        return unix_stream_over(await connected_unix(path), concurrent)

    return Opening(connect())


async def connected_unix(path: str | bytes | os.PathLike[str]) -> socket.socket:
    """A socket, not blocking, that is connected to a Unix server.

    Raises: as `connect_unix`.
    """
    await anyio.lowlevel.checkpoint()
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(os.fspath(path))
            except BlockingIOError:  # noqa: PERF203
                # The server's backlog is full; no fd tells when there is room.
                await anyio.sleep(BACKLOG_IS_FULL)
            else:
                return sock
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise located(error, f"cannot connect to {path!r}") from error
        raise


def located(error: OSError, place: str) -> OSError:
    """The same error, saying where it happened."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return TimeoutError(errno.ETIMEDOUT, f"{place}: timed out")
    if error.errno is None:
        return OSError(errno.EINVAL, f"{place}: {error}")
    return type(error)(error.errno, f"{place}: {error.strerror}")
